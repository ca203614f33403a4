// Goal: a profile read back is the one written, whatever lies about it is refused by name, and a
// file is replaced whole.

#include "client/profile_file.h"

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckv {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

Profile Sample() {
  Profile profile;
  profile.subject = "a \"subject\" of \xc3\xa9t\xc3\xa9";
  profile.here.merge_per_row_us = 0.125;
  profile.here.splice_per_token_layer_us = 0.0625;
  profile.here.prefill_per_token_layer_us = 3.5;
  profile.here.attend = {
      .base_us = 1, .per_row_us = 2, .anchor_count = 1, .anchors = {{{16, 0.25}}}};
  profile.lanes = {{"h0", "shm", {1.5, 9e9, 8e9}, {2, 0.5, 2, {{{1, 0.5}, {64, 4}}}}, 0},
                   {"h1", "tcp", {20, 1e9, 2e9}, {}, 0.75}};
  return profile;
}

TEST(Profile, IsReadAsItWasWritten) {
  for (const bool prefill : {true, false}) {
    Profile profile = Sample();
    if (!prefill) profile.here.prefill_per_token_layer_us.reset();
    const auto read = ParseProfile(FormatProfile(profile));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->subject, profile.subject);
    EXPECT_EQ(read->here.merge_per_row_us, profile.here.merge_per_row_us);
    EXPECT_EQ(read->here.prefill_per_token_layer_us, profile.here.prefill_per_token_layer_us);
    EXPECT_EQ(read->here.attend, profile.here.attend);
    EXPECT_EQ(read->lanes, profile.lanes);
    EXPECT_EQ(read->Find("h1", "tcp"), &read->lanes[1]);
    EXPECT_EQ(read->Find("h1", "shm"), nullptr);
  }
}

TEST(Profile, WhatLiesIsRefusedByName) {
  const std::string good = FormatProfile(Sample());
  const std::vector<std::pair<std::string, std::string>> lies = {
      {"\"subject\"", "\"sbject\""},
      {"\"merge_per_row_us\": 0.125", "\"merge_per_row_us\": -0.125"},
      {"\"merge_per_row_us\": 0.125", "\"merge_per_row_us\": \"x\""},
      {"\"t_probe_us\": 1.5", "\"t_probe_us\": null"},
      {"\"fabric\": \"tcp\"", "\"fabric\": 7"},
      {"\"wire_share\": 0.75", "\"wire_share\": -0.75"},
      {"\"query_rows\": 64", "\"query_rows\": 1"},
      {"\"lanes\": [", "\"lanes\": {}, \"others\": ["},
  };
  for (const auto& [from, to] : lies) {
    std::string text = good;
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    EXPECT_EQ(ParseProfile(text).status().code(), StatusCode::kInvalidArgument) << to;
  }
  for (const char* text : {"", "[]", "7", "{\"subject\": \"x\"}", "{"})
    EXPECT_EQ(ParseProfile(text).status().code(), StatusCode::kInvalidArgument) << text;
}

TEST(Profile, FilesAreReplacedWhole) {
  const std::string path = testing::TempDir() + "/profile_file_test.json";
  std::remove(path.c_str());
  EXPECT_EQ(ReadProfile(path).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(WriteProfile(path, Sample()).ok());
  Profile other = Sample();
  other.lanes.clear();
  ASSERT_TRUE(WriteProfile(path, other).ok());
  const auto read = ReadProfile(path);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->lanes.empty());
  EXPECT_EQ(WriteProfile("/nowhere/at/all.json", other).code(), StatusCode::kUnavailable);
  std::ofstream(path) << "{]";
  const auto broken = ReadProfile(path);
  EXPECT_EQ(broken.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(broken.status().message()), HasSubstr(path));
}

}  // namespace
}  // namespace ckv
