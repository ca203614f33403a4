// Goal: f32 queries, row limits and runs of a request mean what the .proto says, of Attend and of
// AttendStream, and no size in a request takes memory before it is checked.
// Method: whole daemons in this process; answers are held against an f64 reference, and against the
// bits of the request that says the same in the plain way.

#include <limits>

#include "attention/bf16.h"
#include "attention/rope.h"
#include "tests/attention/rotate_bf16.h"
#include "tests/server/services/services_fixture.h"

namespace ckv {
namespace {

using test::Call;
using testing::HasSubstr;

constexpr auto kInvalid = grpc::StatusCode::INVALID_ARGUMENT;

class AttendFieldsTest : public test::ServicesTest {
 protected:
  static constexpr uint32_t kRows = 24;

  void SetUp() override {
    ServicesTest::SetUp();
    StartHolders(2);
    StartRequester();
    Load("c", corpus_);
  }
  v1::AttendRequest Named() { return test::AttendOf("c", 1, q_, geometry().d_qk); }
  const Geometry& geometry() const { return corpus_.geometry; }

  // By the call and by a stream of this policy. Both have one answer, or are refused alike.
  grpc::Status Send(const v1::AttendRequest& request, v1::AttendReply* reply,
                    v1::ContextPolicy policy = v1::CONTEXT_POLICY_ROUTE) {
    grpc::Status one = Attend(request, reply);
    Call call;
    const auto stream = requester_stub_->AttendStream(call.get());
    v1::AttendRequest named = request;
    named.set_policy(policy);
    EXPECT_TRUE(stream->Write(named));
    v1::AttendStreamReply streamed;
    EXPECT_TRUE(stream->Read(&streamed)) << stream->Finish().error_message();
    EXPECT_EQ(streamed.code(), static_cast<uint32_t>(one.error_code())) << streamed.message();
    EXPECT_EQ(streamed.reply().o(), reply->o());
    EXPECT_EQ(streamed.reply().m(), reply->m());
    EXPECT_EQ(streamed.reply().l(), reply->l());
    return one;
  }
  v1::AttendReply Answer(const v1::AttendRequest& request,
                         v1::ContextPolicy policy = v1::CONTEXT_POLICY_ROUTE) {
    v1::AttendReply reply;
    const grpc::Status status = Send(request, &reply, policy);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }
  std::string Refusal(const v1::AttendRequest& request) {
    v1::AttendReply reply;
    const grpc::Status status = Send(request, &reply);
    EXPECT_EQ(status.error_code(), kInvalid) << status.error_message();
    return status.error_message();
  }
  static void ExpectSameBits(const v1::AttendReply& got, const v1::AttendReply& want) {
    EXPECT_TRUE(got.o() == want.o());
    EXPECT_TRUE(got.m() == want.m());
    EXPECT_TRUE(got.l() == want.l());
  }
  static std::string Bytes(const std::vector<uint32_t>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(uint32_t)};
  }
  static std::string Int32s(const std::vector<int32_t>& values) { return Int32sToBytes(values); }
  static void SetLimits(v1::AttendRequest& request, const std::vector<uint32_t>& limits,
                        uint32_t group_rows) {
    request.mutable_row_limits()->set_limits(Bytes(limits));
    request.mutable_row_limits()->set_group_rows(group_rows);
  }
  // The query row i sees the first limits[i / group_rows] of the rows.
  void ExpectLimited(const v1::AttendReply& reply, std::span<const uint16_t> q,
                     std::span<const uint16_t> rows, const std::vector<uint32_t>& limits,
                     uint32_t group_rows) {
    test::ReferencePartial want;
    const size_t width = geometry().d_qk;
    for (size_t i = 0; i < kRows; ++i) {
      const auto one = test::Reference(geometry(), q.subspan(i * width, width),
                                       rows.first(limits[i / group_rows] * width));
      want.o.insert(want.o.end(), one.o.begin(), one.o.end());
      want.m.push_back(one.m[0]);
      want.l.push_back(one.l[0]);
    }
    test::ExpectNear(reply, want);
  }

  const test::TestCorpus corpus_ = test::MakeTestCorpus(test::TestGeometry(), {50, 0, 64, 7}, 61);
  std::mt19937 rng_{62};
  const std::vector<uint16_t> q_ = test::RandomBf16(kRows * corpus_.geometry.d_qk, rng_);
};

TEST_F(AttendFieldsTest, F32QueriesAreRoundedToBf16) {
  std::vector<float> values(q_.size());
  std::uniform_real_distribution<float> value(-1, 1);
  for (float& v : values) v = value(rng_);
  values[0] = 1 + 0x1p-8f;                               // a tie, to even: down
  values[1] = 1 + 3 * 0x1p-8f;                           // a tie, to even: up
  values[2] = std::numeric_limits<float>::denorm_min();  // to 0
  std::vector<uint16_t> rounded(values.size());
  Bf16FromFloats(values.data(), rounded.data(), values.size());
  EXPECT_EQ(rounded[0], 0x3f80);
  EXPECT_EQ(rounded[1], 0x3f82);
  v1::AttendRequest request = test::AttendOf("c", 1, rounded, geometry().d_qk);
  const v1::AttendReply want = Answer(request);
  test::ExpectNear(want, test::Reference(geometry(), rounded, corpus_.Rows(1)));
  request.set_q_dtype(v1::QUERY_DTYPE_BF16);
  ExpectSameBits(Answer(request), want);
  request.set_q_dtype(v1::QUERY_DTYPE_F32);
  EXPECT_THAT(Refusal(request), HasSubstr("96 f32 values are 9216"));  // the bytes are bf16's
  request.set_q(values.data(), values.size() * sizeof(float));
  ExpectSameBits(Answer(request), want);
  request.set_q_dtype(v1::QUERY_DTYPE_BF16);
  EXPECT_THAT(Refusal(request), HasSubstr("96 bf16 values are 4608"));
  request.set_q_dtype(static_cast<v1::QueryDtype>(3));
  EXPECT_THAT(Refusal(request), HasSubstr("q_dtype"));
  request.set_q_dtype(static_cast<v1::QueryDtype>(-1));
  EXPECT_THAT(Refusal(request), HasSubstr("q_dtype"));
}

TEST_F(AttendFieldsTest, RowLimitsHideTheRowsBehindThem) {
  const std::vector<uint16_t> rows = corpus_.Rows(1);
  v1::AttendRequest request = Named();
  for (const uint32_t group_rows : {1u, 4u, 7u, kRows}) {
    for (int round = 0; round < 6; ++round) {
      SCOPED_TRACE(testing::Message() << "groups of " << group_rows << ", round " << round);
      // A causal mask that begins anywhere, all limits, and limits in no order.
      std::vector<uint32_t> limits;
      const uint32_t first = rng_() % 122;
      for (uint32_t row = 0; row < kRows; row += group_rows)
        limits.push_back(round < 3 ? std::min<uint32_t>(first + row / group_rows, 121)
                                   : rng_() % 122);
      if (round == 3) limits[0] = 0;
      if (round == 4) limits[0] = 50;  // where a chunk ends
      SetLimits(request, limits, group_rows);
      const auto policy = round % 2 ? v1::CONTEXT_POLICY_CACHE : v1::CONTEXT_POLICY_ROUTE;
      ExpectLimited(Answer(request, policy), q_, rows, limits, group_rows);
    }
  }
}

TEST_F(AttendFieldsTest, LimitsBetweenChunksGiveTheBitsOfThoseChunks) {
  v1::AttendRequest limited = Named(), named = Named();
  SetLimits(limited, {50}, kRows);
  named.set_chunk_end(1);
  ExpectSameBits(Answer(limited), Answer(named));
  SetLimits(limited, {121}, kRows);
  ExpectSameBits(Answer(limited), Answer(Named()));
  SetLimits(limited, {0}, kRows);
  const v1::AttendReply nothing = Answer(limited);
  EXPECT_EQ(test::FloatsOf(nothing.l()), std::vector<float>(kRows, 0));
  EXPECT_EQ(test::FloatsOf(nothing.m()),
            std::vector<float>(kRows, -std::numeric_limits<float>::infinity()));
}

// The rows count in the order of the request, and queries are turned for each chunk.
TEST_F(AttendFieldsTest, LimitsCountTheChunksAsListed) {
  v1::AttendRequest request = Named();
  const size_t width = geometry().d_qk;
  const std::vector<size_t> order = {2, 3, 0};
  for (const size_t i : order) {
    v1::ChunkRef* chunk = request.add_chunks();
    chunk->set_id(std::string(corpus_.chunks[i].info.id.AsBytes()));
    chunk->set_offset(1000);
  }
  std::vector<uint16_t> turned(q_.size()), rows;
  test::CopyRotatedBf16(RopeRotation(geometry().rope, geometry().d_rope, -1000), q_.data(), width,
                        turned.data(), kRows, width);
  for (const size_t i : order) {
    const std::vector<uint16_t> more = corpus_.Rows(1, i, i + 1);
    rows.insert(rows.end(), more.begin(), more.end());
  }
  const std::vector<uint32_t> limits = {3, 64, 68, 71, 100, 121};  // the chunks have 64, 7 and 50
  SetLimits(request, limits, 4);
  ExpectLimited(Answer(request), turned, rows, limits, 4);
}

TEST_F(AttendFieldsTest, LimitsThatDoNotFitAreRefused) {
  v1::AttendRequest request = Named();
  SetLimits(request, {121, 122}, 12);
  EXPECT_THAT(Refusal(request), HasSubstr("row limit 1 is 122; the chunks have 121 rows"));
  SetLimits(request, {0xffffffff, 0}, 12);
  EXPECT_THAT(Refusal(request), HasSubstr("row limit 0"));
  SetLimits(request, {1, 2, 3}, 12);
  EXPECT_THAT(Refusal(request), HasSubstr("row_limits: 12 bytes"));
  SetLimits(request, {1, 2}, 0);  // which is 1
  EXPECT_THAT(Refusal(request), HasSubstr("24 groups of 4 bytes"));
  SetLimits(request, {1}, 0xffffffff);
  Answer(request);
  request.mutable_selection()->set_k(0);
  EXPECT_THAT(Refusal(request), HasSubstr("together with a selection"));
}

TEST_F(AttendFieldsTest, RunsAreTheIndicesThatTheyName) {
  v1::AttendRequest runs = Named(), indices = Named();
  runs.mutable_selection()->set_group_rows(12);
  runs.mutable_selection()->set_k(3);
  // The second group has fewer rows than the first. A row in two runs counts twice.
  runs.mutable_selection()->set_runs(Int32s({40, 5, 0, 2, 41, 1, /*second*/ 120, 1, -7, 0, 60, 2}));
  indices.mutable_selection()->set_group_rows(12);
  indices.mutable_selection()->set_k(8);
  indices.mutable_selection()->set_indices(
      Int32s({40, 41, 42, 43, 44, 0, 1, 41, /*second*/ 120, 60, 61, -1, -1, -1, -1, -1}));
  ExpectSameBits(Answer(runs), Answer(indices));
  // Runs of length 0 alone see nothing.
  runs.mutable_selection()->set_runs(Int32s(std::vector<int32_t>(12, 0)));
  EXPECT_EQ(test::FloatsOf(Answer(runs).l()), std::vector<float>(kRows, 0));
}

TEST_F(AttendFieldsTest, RunsThatDoNotFitAreRefused) {
  v1::AttendRequest request = Named();
  v1::Selection& selection = *request.mutable_selection();
  selection.set_group_rows(kRows);
  const auto refusal = [&](uint32_t k, const std::vector<int32_t>& runs) {
    selection.set_k(k);
    selection.set_runs(Int32s(runs));
    return Refusal(request);
  };
  EXPECT_THAT(refusal(1, {0, 1, 2}), HasSubstr("12 bytes of runs"));
  EXPECT_THAT(refusal(2, {0, 1}), HasSubstr("1 groups of 2 runs"));
  EXPECT_THAT(refusal(0, {0, 1}), HasSubstr("1 groups of 0 runs"));
  EXPECT_THAT(refusal(0x80000001, {0, 1}), HasSubstr("8 bytes of runs"));
  EXPECT_THAT(refusal(1, {120, 2}), HasSubstr("121"));  // one row beyond
  EXPECT_THAT(refusal(1, {-1, 2}), HasSubstr("run 0 of list 0 is 2 rows from -1"));
  EXPECT_THAT(refusal(1, {3, -2}), HasSubstr("-2 rows from 3"));
  EXPECT_THAT(refusal(1, {INT32_MAX, 2}), HasSubstr("2 rows from 2147483647"));
  // Before memory is taken: 2^31 rows would be 8 GB.
  EXPECT_THAT(refusal(1, {0, INT32_MAX}), HasSubstr("16777216"));
  EXPECT_THAT(refusal(2, {0, 1 << 23, 0, (1 << 23) + 1}), HasSubstr("16777216"));
  selection.set_group_rows(12);
  EXPECT_THAT(refusal(1, {0, (1 << 23) + 1, 0, 1}), HasSubstr("16777216"));
  selection.set_indices(Int32s({0, 0}));
  EXPECT_THAT(refusal(1, {0, 1, 0, 1}), HasSubstr("indices and runs"));
}

// A count of rows that wraps a product must not pass for the size of what was sent.
TEST_F(AttendFieldsTest, ACountThatWrapsIsRefused) {
  v1::AttendRequest request = Named();
  request.set_row_count(1u << 31);
  request.mutable_selection()->set_k(1u << 31);
  request.mutable_selection()->set_runs(Int32s({0, 1}));
  Refusal(request);
  request.mutable_selection()->set_runs("");
  Refusal(request);
}

}  // namespace
}  // namespace ckv
