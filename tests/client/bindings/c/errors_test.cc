// Goal: errors that need no fleet to detect are refused with a code and a text, for the calling
// thread.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <thread>
#include <utility>

#include "client/bindings/c/ckv.h"

namespace {

using testing::HasSubstr;

ckv_open_options Options() {
  ckv_open_options options = {};
  options.struct_size = sizeof(options);
  options.directory = "127.0.0.1:1";  // no process listens there
  return options;
}

TEST(Open, MistakesAreRefused) {
  ckv_requester* requester = nullptr;
  EXPECT_EQ(ckv_open(nullptr, &requester), CKV_INVALID_ARGUMENT);
  ckv_open_options options = Options();
  EXPECT_EQ(ckv_open(&options, nullptr), CKV_INVALID_ARGUMENT);
  options.directory = nullptr;
  EXPECT_EQ(ckv_open(&options, &requester), CKV_INVALID_ARGUMENT);
  EXPECT_THAT(ckv_last_error(nullptr), HasSubstr("directory"));
  options = Options();
  for (const char* fabrics : {"", "tcp,", "loopback", "tcp;shm", "carrier pigeon"}) {
    options.fabrics = fabrics;
    EXPECT_EQ(ckv_open(&options, &requester), CKV_INVALID_ARGUMENT) << fabrics;
    EXPECT_THAT(ckv_last_error(nullptr), HasSubstr("fabrics"));
  }
  options = Options();
  options.kernel_target = "ABACUS";
  EXPECT_EQ(ckv_open(&options, &requester), CKV_INVALID_ARGUMENT);
  EXPECT_THAT(ckv_last_error(nullptr), HasSubstr("ABACUS"));
  options = Options();
  options.call_count_max = 1u << 20;
  EXPECT_EQ(ckv_open(&options, &requester), CKV_INVALID_ARGUMENT);
  options = Options();
  options.tenant = "a tenant";
  EXPECT_EQ(ckv_open(&options, &requester), CKV_INVALID_ARGUMENT);

  const std::string too_long(257, 'm');
  options = Options();
  options.announce = too_long.c_str();
  EXPECT_EQ(ckv_open(&options, &requester), CKV_INVALID_ARGUMENT);
  options.announce = "m1";
  for (const auto& [rank, rank_count] : {std::pair{1u, 0u}, {2u, 2u}}) {
    options.announce_rank = rank;
    options.announce_rank_count = rank_count;
    EXPECT_EQ(ckv_open(&options, &requester), CKV_INVALID_ARGUMENT) << rank << " of " << rank_count;
  }
  EXPECT_EQ(requester, nullptr);
}

TEST(Open, AnotherMajorVersionIsRefused) {
  const ckv_open_options options = Options();
  int other = 0;
  ckv_requester* requester = reinterpret_cast<ckv_requester*>(&other);
  EXPECT_EQ(ckv_open_version(CKV_API_MAJOR + 1, 0, &options, &requester), CKV_FAILED_PRECONDITION);
  EXPECT_EQ(requester, nullptr);
  // A program of a later minor version works if it uses nothing that this version lacks.
  EXPECT_EQ(ckv_open_version(CKV_API_MAJOR, CKV_API_MINOR + 7, &options, &requester), CKV_OK);
  EXPECT_EQ(ckv_close(requester), CKV_OK);
  uint32_t major = 0, minor = 0;
  ckv_api_version(&major, &minor);
  EXPECT_EQ(major, uint32_t{CKV_API_MAJOR});
  EXPECT_EQ(minor, uint32_t{CKV_API_MINOR});
}

TEST(Open, TheKernelTargetIsTheProcess) {
  ckv_open_options options = Options();
  options.kernel_target = "SSE4";
  ckv_requester *first = nullptr, *second = nullptr;
  const ckv_status made = ckv_open(&options, &first);
  if (made == CKV_INVALID_ARGUMENT)
    GTEST_SKIP() << ckv_last_error(nullptr) << "; to run it: a processor with AVX512";
  ASSERT_EQ(made, CKV_OK);
  EXPECT_EQ(ckv_open(&options, &second), CKV_OK);
  options.kernel_target = "AMX_MODEL";
  ckv_requester* third = nullptr;
  EXPECT_EQ(ckv_open(&options, &third), CKV_FAILED_PRECONDITION);
  EXPECT_EQ(ckv_close(first), CKV_OK);
  EXPECT_EQ(ckv_close(second), CKV_OK);
}

TEST(LastError, BelongsToTheThreadAndTheRequester) {
  const ckv_open_options options = Options();
  ckv_requester *one = nullptr, *other = nullptr;
  ASSERT_EQ(ckv_open(&options, &one), CKV_OK);
  ASSERT_EQ(ckv_open(&options, &other), CKV_OK);
  ckv_corpus* corpus = nullptr;
  EXPECT_EQ(ckv_resolve(one, nullptr, 0, &corpus), CKV_INVALID_ARGUMENT);
  EXPECT_THAT(ckv_last_error(one), HasSubstr("name"));
  EXPECT_THAT(ckv_last_error(nullptr), HasSubstr("name"));
  EXPECT_STREQ(ckv_last_error(other), "");
  EXPECT_EQ(ckv_last_retry_after_ns(one), 0u);
  std::thread([&] { EXPECT_STREQ(ckv_last_error(one), ""); }).join();
  EXPECT_EQ(ckv_close(one), CKV_OK);
  EXPECT_EQ(ckv_close(other), CKV_OK);
}

TEST(Resolve, ADirectoryThatIsNotThereIsUnavailable) {
  const ckv_open_options options = Options();
  ckv_requester* requester = nullptr;
  ASSERT_EQ(ckv_open(&options, &requester), CKV_OK);
  int other = 0;
  ckv_corpus* corpus = reinterpret_cast<ckv_corpus*>(&other);
  EXPECT_EQ(ckv_resolve(requester, "gpl", UINT64_C(1000000000), &corpus), CKV_UNAVAILABLE)
      << ckv_last_error(requester);
  EXPECT_EQ(corpus, nullptr);
  EXPECT_THAT(ckv_last_error(requester), HasSubstr("127.0.0.1:1"));
  EXPECT_EQ(ckv_close(requester), CKV_OK);
}

TEST(Handles, NullIsFreedAndOtherwiseRefused) {
  ckv_corpus_free(nullptr);
  ckv_context_close(nullptr);
  ckv_ticket_free(nullptr);
  ckv_cancel(nullptr);
  ckv_fetch_ticket_free(nullptr);
  ckv_fetch_cancel(nullptr);
  ckv_text_free(nullptr);
  char* json = nullptr;
  EXPECT_EQ(ckv_estimate(nullptr, nullptr, &json), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(ckv_explain(nullptr, nullptr, &json), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(ckv_close(nullptr), CKV_OK);
  EXPECT_EQ(ckv_context_token_count(nullptr), 0u);
  int done = 0;
  EXPECT_EQ(ckv_poll(nullptr, &done), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(ckv_wait(nullptr, 0, &done), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(ckv_attend(nullptr, nullptr, nullptr), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(ckv_fetch(nullptr, nullptr, nullptr), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(ckv_fetch_wait(nullptr, 0, &done, nullptr), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(ckv_fetch_wait_layer(nullptr, 0, 0, &done), CKV_INVALID_ARGUMENT);
  ckv_context* context = nullptr;
  EXPECT_EQ(ckv_context_open(nullptr, nullptr, &context), CKV_INVALID_ARGUMENT);
  ckv_corpus_facts facts = {};
  facts.struct_size = sizeof(facts);
  EXPECT_EQ(ckv_corpus_describe(nullptr, &facts), CKV_INVALID_ARGUMENT);
  EXPECT_EQ(ckv_corpus_chunks(nullptr, 0, 0, nullptr, nullptr, nullptr), CKV_INVALID_ARGUMENT);
}

TEST(StatusName, EveryCodeHasAName) {
  EXPECT_STREQ(ckv_status_name(CKV_OK), "OK");
  EXPECT_STREQ(ckv_status_name(CKV_FAILED_PRECONDITION), "FAILED_PRECONDITION");
  EXPECT_STREQ(ckv_status_name(CKV_UNAUTHENTICATED), "UNAUTHENTICATED");
  EXPECT_STREQ(ckv_status_name(17), "UNKNOWN");
  EXPECT_STREQ(ckv_status_name(-1), "UNKNOWN");
}

}  // namespace
