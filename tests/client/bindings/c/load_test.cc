// Goal: ckv_report_load and ckv_rank_requesters refuse each argument that is not valid, and name
// it. Method: a requester whose directory does not answer. tests/client/bindings/python/router_e2e
// has both calls against a fleet.

#include "client/bindings/c/ckv_load.h"

#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

using testing::HasSubstr;

struct LoadCalls : testing::Test {
  LoadCalls() {
    ckv_open_options options = {};
    options.struct_size = sizeof options;
    options.directory = "127.0.0.1:1";
    options.name = "engine-0";
    EXPECT_EQ(ckv_open(&options, &requester), CKV_OK) << ckv_last_error(nullptr);
    load.struct_size = sizeof load;
    load.address = "10.0.0.1:8000";
    query.struct_size = sizeof query;
    query.tokens = 10;
    query.cache_bytes = 100;
  }
  ~LoadCalls() override { EXPECT_EQ(ckv_close(requester), CKV_OK); }
  std::string RefusedLoad() {
    EXPECT_EQ(ckv_report_load(requester, &load), CKV_INVALID_ARGUMENT);
    return ckv_last_error(requester);
  }
  std::string RefusedQuery(ckv_status status = CKV_INVALID_ARGUMENT) {
    char* json = nullptr;
    EXPECT_EQ(ckv_rank_requesters(requester, &query, &json), status);
    EXPECT_EQ(json, nullptr);
    return ckv_last_error(requester);
  }
  ckv_requester* requester = nullptr;
  ckv_load load = {};
  ckv_rank_query query = {};
};

TEST_F(LoadCalls, RefuseLoads) {
  load.queued = -1;
  EXPECT_THAT(RefusedLoad(), HasSubstr("load.queued: -1"));
  load.queued = std::nan("");
  EXPECT_THAT(RefusedLoad(), HasSubstr("load.queued"));
  load.queued = 0;
  load.address = "nowhere";
  EXPECT_THAT(RefusedLoad(), HasSubstr("address"));
  load.address = nullptr;
  EXPECT_THAT(RefusedLoad(), HasSubstr("address"));
  load.address = "10.0.0.1:8000";
  load.reserved = 1;
  EXPECT_THAT(RefusedLoad(), HasSubstr("reserved"));
  load.reserved = 0;
  load.struct_size = 3;
  EXPECT_THAT(RefusedLoad(), HasSubstr("struct_size 3"));
  load.struct_size = sizeof load;
  // An unreachable directory is no error of a call that does not wait.
  EXPECT_EQ(ckv_report_load(requester, &load), CKV_OK);
  load.address = "10.0.0.2:8000";
  EXPECT_THAT(RefusedLoad(), HasSubstr("the first report had 10.0.0.1:8000"));
  EXPECT_EQ(ckv_report_load(nullptr, &load), CKV_INVALID_ARGUMENT);
}

TEST_F(LoadCalls, RefuseQueries) {
  query.chunk_count = 1;
  EXPECT_THAT(RefusedQuery(), HasSubstr("chunk_ids"));
  query.chunk_count = 5000;
  EXPECT_THAT(RefusedQuery(), HasSubstr("chunk_count is 5000"));
  query.chunk_count = 0;
  query.tier_count = 1;
  EXPECT_THAT(RefusedQuery(), HasSubstr("in_flight"));
  query.tier_count = 17;
  EXPECT_THAT(RefusedQuery(), HasSubstr("tier_count is 17"));
  query.tier_count = 0;
  EXPECT_THAT(RefusedQuery(CKV_UNAVAILABLE), HasSubstr("127.0.0.1:1"));
  EXPECT_EQ(ckv_rank_requesters(requester, &query, nullptr), CKV_INVALID_ARGUMENT);
}

}  // namespace
