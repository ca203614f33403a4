// Goal: SelectRows over gRPC returns the rows that one process with all keys selects, and sizes are
// checked before memory is allocated.
// Method: whole daemons in this process; rows are held against IndexSearch over all keys.

#include <limits>
#include <vector>

#include "server/rpc/select_request.h"
#include "tests/client/call/select_rows_fixture.h"
#include "tests/server/services/services_fixture.h"

namespace ckv {
namespace {

using test::Due;
using test::IndexQuery;
using test::kTokenCount;

constexpr uint32_t kBest = 30;

class SelectServiceTest : public test::ServicesTest {
 protected:
  void SetUp() override {
    ServicesTest::SetUp();
    StartHolders(2);
    StartRequester();
    Load("c", corpus_);
  }
  v1::SelectRowsRequest Request() const {
    v1::SelectRowsRequest request;
    request.set_corpus("c");
    request.set_layer(2);
    request.set_token_count(kTokenCount);
    request.set_q(query_.q.data(), query_.q.size() * sizeof(uint16_t));
    request.set_weights(query_.weights.data(), query_.weights.size() * sizeof(float));
    request.set_k(kBest);
    return request;
  }
  grpc::Status Select(const v1::SelectRowsRequest& request, v1::SelectRowsReply* reply) {
    test::Call call;
    return requester_stub_->SelectRows(call.get(), request, reply);
  }
  std::vector<int32_t> Rows(const v1::SelectRowsRequest& request) {
    v1::SelectRowsReply reply;
    const grpc::Status status = Select(request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_GT(reply.bytes_received(), 0u);
    std::vector<int32_t> rows(reply.rows().size() / sizeof(int32_t));
    if (!rows.empty()) std::memcpy(rows.data(), reply.rows().data(), reply.rows().size());
    return rows;
  }

  const test::TestCorpus corpus_ =
      test::MakeTestCorpus(test::WithIndex(test::TestGeometry()), {40, 50, 60, 70}, 3);
  const IndexQuery query_{*corpus_.geometry.index, 6, false};
};

TEST_F(SelectServiceTest, RowsAreThoseOfAllKeys) {
  v1::SelectRowsRequest request = Request();
  EXPECT_EQ(Rows(request), Due(corpus_, {0, 1, 2, 3}, 2, query_, kBest));
  request.set_chunk_begin(1);
  request.set_chunk_end(3);
  EXPECT_EQ(Rows(request), Due(corpus_, {1, 2}, 2, query_, kBest));
  request = Request();
  for (const size_t chunk : {3u, 0u})
    request.add_chunks()->set_id(std::string(corpus_.chunks[chunk].info.id.AsBytes()));
  EXPECT_EQ(Rows(request), Due(corpus_, {3, 0}, 2, query_, kBest));
  const float own[kTokenCount][2] = {{1e9f, -std::numeric_limits<float>::infinity()}};
  request.set_own_scores(&own, sizeof(own));
  EXPECT_EQ(Rows(request)[kBest - 1], 110);
}

TEST_F(SelectServiceTest, RefusesWhatIsNoSelection) {
  const auto code = [&](auto change) {
    v1::SelectRowsRequest request = Request();
    change(request);
    v1::SelectRowsReply reply;
    const grpc::Status status = Select(request, &reply);
    EXPECT_TRUE(status.ok() || reply.rows().empty());
    return status.error_code();
  };
  using R = v1::SelectRowsRequest;
  constexpr auto kBad = grpc::StatusCode::INVALID_ARGUMENT;
  EXPECT_EQ(code([](R&) {}), grpc::StatusCode::OK);
  EXPECT_EQ(code([](R& r) { r.mutable_q()->pop_back(); }), kBad);
  EXPECT_EQ(code([](R& r) { r.mutable_weights()->pop_back(); }), kBad);
  EXPECT_EQ(code([](R& r) { r.set_own_scores("abc"); }), kBad);
  EXPECT_EQ(code([](R& r) { r.set_k(0); }), kBad);
  EXPECT_EQ(code([](R& r) { r.set_k(kIndexTopMax + 1); }), kBad);
  EXPECT_EQ(code([](R& r) { r.set_token_count(0); }), kBad);
  EXPECT_EQ(code([](R& r) { r.set_token_count(0xffffffff); }), kBad);
  EXPECT_EQ(code([](R& r) { r.set_layer(3); }), kBad);
  EXPECT_EQ(code([](R& r) { r.set_q_dtype(static_cast<v1::IndexQueryDtype>(9)); }), kBad);
  EXPECT_EQ(code([](R& r) { r.clear_corpus(); }), kBad);
  EXPECT_EQ(code([](R& r) { r.set_corpus("none"); }), grpc::StatusCode::NOT_FOUND);
  Load("plain", test::MakeTestCorpus(test::TestGeometry(), {40}, 4));
  EXPECT_EQ(code([](R& r) { r.set_corpus("plain"); }), grpc::StatusCode::FAILED_PRECONDITION);
}

TEST(SelectRequest, RefusesAReplyThatFitsNoMessage) {
  const Geometry geometry = test::WithIndex(test::TestGeometry());
  v1::SelectRowsRequest request;
  request.set_token_count(1024);
  request.set_k(kIndexTopMax);
  SelectMemory memory;
  const auto call = SelectCallOf(request, geometry, memory);
  EXPECT_THAT(call.status().message(), testing::HasSubstr("send fewer tokens"));
}

}  // namespace
}  // namespace ckv
