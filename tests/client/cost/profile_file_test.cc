// Goal: a profile read back is the one written, a malformed one is refused by name, and a file is
// replaced whole.

#include "client/cost/profile_file.h"

#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/named_geometry.h"
#include "tests/support/temp_folder.h"

namespace ckv {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

Profile Sample() {
  Profile profile;
  profile.subject = "a \"subject\" of \xc3\xa9t\xc3\xa9";
  profile.here.merge_per_row_us = 0.125;
  profile.here.splice_per_token_layer_us = 0.0625;
  profile.here.splice_per_layer_us = 0.75;
  profile.here.prefill_per_token_layer_us = 3.5;
  profile.here.attend = {.base_us = 1,
                         .per_row_us = 2,
                         .anchor_count = 1,
                         .anchors = {{{16, 0.25}}},
                         .floor = {0.125, 0.5}};
  profile.kernel_target = KernelTargetId::kNeon;
  profile.lanes = {{"h0",
                    "shm",
                    {1.5, 9e9, 8e9},
                    {2, 0.5, 2, {{{1, 0.5}, {64, 4}}}, {0.0625, 1}},
                    0,
                    0,
                    1,
                    {70.5, 0.0002, 2097152},
                    KernelTargetId::kAvx3,
                    8,
                    2},
                   {"h1", "tcp", {20, 1e9, 2e9}, {}, 0.75, 16384, 0.25}};
  return profile;
}

TEST(Profile, RoundTrips) {
  for (const bool prefill : {true, false}) {
    Profile profile = Sample();
    if (!prefill) profile.here.prefill_per_token_layer_us.reset();
    const auto read = ParseProfile(FormatProfile(profile));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->subject, profile.subject);
    EXPECT_EQ(read->here.merge_per_row_us, profile.here.merge_per_row_us);
    EXPECT_EQ(read->here.splice_per_token_layer_us, profile.here.splice_per_token_layer_us);
    EXPECT_EQ(read->here.splice_per_layer_us, profile.here.splice_per_layer_us);
    EXPECT_EQ(read->here.prefill_per_token_layer_us, profile.here.prefill_per_token_layer_us);
    EXPECT_EQ(read->here.attend, profile.here.attend);
    EXPECT_EQ(read->kernel_target, profile.kernel_target);
    EXPECT_EQ(read->lanes, profile.lanes);
    EXPECT_EQ(read->Find("h1", "tcp"), &read->lanes[1]);
    EXPECT_EQ(read->Find("h1", "shm"), nullptr);
  }
}

// A profile may contain the choice of a kernel target; earlier profiles do not.
TEST(Profile, CarriesTheChoiceOfAKernelTarget) {
  Profile profile = Sample();
  EXPECT_THAT(FormatProfile(profile), Not(HasSubstr("\"kernel\"")));
  EXPECT_FALSE(ParseProfile(FormatProfile(profile))->kernel);
  profile.kernel = {"AVX3", {.f32 = 370.25, .amx = 0, .dot = 410.5}, "a machine; targets AVX3"};
  const std::string text = FormatProfile(profile);
  const auto read = ParseProfile(text);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->kernel, profile.kernel);
  EXPECT_EQ(read->lanes, profile.lanes);
  std::string lie = text;
  lie.replace(lie.find("370.25"), 6, "\"fast\"");
  const absl::Status refused = ParseProfile(lie).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("kernel: f32_gflop_per_s"));
}

TEST(Profile, RefusesImplausibleFieldsByName) {
  const std::string good = FormatProfile(Sample());
  const std::vector<std::pair<std::string, std::string>> lies = {
      {"\"subject\"", "\"sbject\""},
      {"\"merge_per_row_us\": 0.125", "\"merge_per_row_us\": -0.125"},
      {"\"merge_per_row_us\": 0.125", "\"merge_per_row_us\": \"x\""},
      {"\"t_probe_us\": 1.5", "\"t_probe_us\": null"},
      {"\"fabric\": \"tcp\"", "\"fabric\": 7"},
      {"\"wire_share\": 0.75", "\"wire_share\": -0.75"},
      {"\"splice_share\": 0.25", "\"splice_share\": \"x\""},
      {"\"query_rows\": 64", "\"query_rows\": 1"},
      {"\"lanes\": [", "\"lanes\": {}, \"others\": ["},
      {"\"floor_us_per_token\": 0.125", "\"floor_us_per_token\": -0.125"},
      {"\"floor_us_per_token\": 0.125", "\"floor_us_per_token\": 1e999"},
      {"\"floor_us_per_token\"", "\"floor\""},
      {"\"floor_shown_share\": 0.5", "\"floor_shown_share\": 1.5"},
      {"\"floor_shown_share\": 0.5", "\"floor_shown_share\": -0.5"},
      {"\"floor_shown_share\": 0.5", "\"floor_shown_share\": \"half\""},
      {"\"version\": 1", "\"version\": 2"},
      {"\"version\": 1", "\"version\": 0"},
      {"\"version\": 1", "\"version\": \"1\""},
      {"\"version\"", "\"edition\""},
      {"\"kernel_target\"", "\"target\""},
      {"\"wire_share\"", "\"wire\""},
      {"\"splice_share\"", "\"splice\""},
      {"\"route_elbow\": 8", "\"route_elbow\": 0.5"},
      {"\"route_elbow\": 8", "\"route_elbow\": 1e9"},
      {"\"fetch_elbow\": 2", "\"fetch_elbow\": -2"},
      {"\"burst_bytes\"", "\"burst\""},
      {"\"fixed_us\": 70.5", "\"fixed_us\": -70.5"},
      {"\"us_per_byte\"", "\"us\""},
      {"\"cache_bytes\": 2097152.0", "\"cache_bytes\": \"2 MiB\""},
      {"\"cold_exchange\": {", "\"cold_exchange\": 7, \"other\": {"},
      {"\"splice_per_layer_us\"", "\"splice_us\""},
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

// The error for a file of another version names a remedy, and the file stays as it is.
TEST(Profile, AFileOfAnotherVersionIsRefusedAndKept) {
  std::string text = FormatProfile(Sample());
  const size_t at = text.find("\"version\": 1");
  ASSERT_NE(at, std::string::npos) << text;
  text.replace(at, 12, "\"version\": 2");
  const std::string path = test::TempPath("profile_of_version_2.json");
  std::ofstream(path, std::ios::binary) << text;
  const absl::Status refused = ReadProfile(path).status();
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("version: 2, but only 1"), HasSubstr("calibrate again")));
  std::ifstream in(path, std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), text);
}

TEST(Profile, AppliesToOneHostAndItsWidths) {
  constexpr KernelTargetId kHostTarget = KernelTargetId::kAvx3;
  Geometry geometry = *NamedGeometry("deepseek-v2-lite");
  geometry.revision = "r1";
  const std::string host = "0123456789abcdef-boot";
  Profile profile;
  const std::vector<std::string> holders = {"h0", "h1"};
  profile.subject = SubjectOf(geometry, host, holders, /*quick=*/false);
  profile.here.prefill_per_token_layer_us = 3;
  EXPECT_EQ(profile.subject, geometry.ToString() + " from 0123456789ab to h0 h1, full");
  EXPECT_EQ(WhyNotOf(profile, geometry, host, kHostTarget), "");
  EXPECT_EQ(WhyNotFrom(profile, host), "");
  EXPECT_TRUE(HereFor(profile, geometry).prefill_per_token_layer_us);
  // Other models of the same widths; but prefill is of one model.
  for (const auto change : std::vector<void (*)(Geometry&)>{
           [](Geometry& g) { g.model += "x"; }, [](Geometry& g) { g.revision = "r"; },
           [](Geometry& g) { g.layers = 61; }, [](Geometry& g) { g.rope.theta *= 2; },
           [](Geometry& g) { g.softmax_scale *= 2; }}) {
    Geometry other = geometry;
    change(other);
    EXPECT_EQ(WhyNotOf(profile, other, host, kHostTarget), "");
    const bool same_model = other.model == geometry.model && other.revision == geometry.revision;
    EXPECT_EQ(HereFor(profile, other).prefill_per_token_layer_us.has_value(), same_model);
  }
  for (const auto change : std::vector<void (*)(Geometry&)>{
           [](Geometry& g) { g.d_qk += 64; }, [](Geometry& g) { g.d_v -= 64; },
           [](Geometry& g) { g.d_rope = 6; }, [](Geometry& g) { g.dtype = RowDtype::kFp8DsMla; }}) {
    Geometry other = geometry;
    change(other);
    EXPECT_THAT(WhyNotOf(profile, other, host, kHostTarget),
                AllOf(HasSubstr(profile.subject), HasSubstr(other.widths().ToString()),
                      HasSubstr("other widths")));
  }
  profile.kernel_target = kHostTarget;
  EXPECT_EQ(WhyNotOf(profile, geometry, host, kHostTarget), "");
  EXPECT_THAT(WhyNotOf(profile, geometry, host, KernelTargetId::kAvx2),
              AllOf(HasSubstr("AVX3"), HasSubstr("AVX2")));
  EXPECT_THAT(WhyNotOf(profile, geometry, "another host", kHostTarget), HasSubstr("booted again"));
  EXPECT_THAT(WhyNotFrom(profile, "another host"),
              AllOf(HasSubstr(profile.subject), HasSubstr("booted again")));
  EXPECT_NE(WhyNotFrom({}, host), "");
  EXPECT_NE(WhyNotOf({}, geometry, host, kHostTarget), "");
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
