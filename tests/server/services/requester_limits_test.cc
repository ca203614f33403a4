// Goal: what a requester refuses or ends has a code that a frontend acts on rightly: it retries
// UNAVAILABLE elsewhere, and mends what is INVALID_ARGUMENT.
// Method: whole daemons in this process, asked over gRPC as any client would; one client is as gRPC
// makes it, and takes 4 MiB.

#include <thread>

#include "server/rpc/attend_request.h"
#include "tests/server/services/services_fixture.h"

namespace ckv {
namespace {

using test::Call;
using test::Soon;
using testing::AllOf;
using testing::HasSubstr;

constexpr uint32_t kDefaultBytesMax = 4u << 20;

class RequesterLimitsTest : public test::ServicesTest {
 protected:
  void SetUp() override {
    ServicesTest::SetUp();
    holder_capacity_bytes_ = 64u << 20;
    StartHolders(1);
    StartRequester();
    Load("c", corpus_);
    plain_stub_ = v1::RequesterService::NewStub(
        grpc::CreateChannel(requester_->address(), grpc::InsecureChannelCredentials()));
  }
  v1::AttendRequest RequestOf(uint32_t rows) {
    const std::vector<uint16_t> q(size_t{rows} * corpus_.geometry.d_qk);
    return test::AttendOf("c", 0, q, corpus_.geometry.d_qk);
  }
  // One message of a client that takes 4 MiB, by the call and by the stream.
  grpc::Status Send(const v1::AttendRequest& request) {
    v1::AttendReply reply;
    grpc::Status one = plain_stub_->Attend(Call().get(), request, &reply);
    Call call;
    const auto stream = plain_stub_->AttendStream(call.get());
    EXPECT_TRUE(stream->Write(request));
    v1::AttendStreamReply streamed;
    EXPECT_TRUE(stream->Read(&streamed)) << stream->Finish().error_message();
    EXPECT_EQ(streamed.code(), static_cast<uint32_t>(one.error_code()));
    // Each call has a trace of its own.
    const auto text = [](const std::string& message) {
      return message.substr(0, message.find(" [trace "));
    };
    EXPECT_EQ(text(streamed.message()), text(one.error_message()));
    return one;
  }

  const test::TestCorpus corpus_ = test::MakeTestCorpus(test::TestGeometry(), {5}, /*seed=*/30);
  const uint32_t rows_fit_ =
      (kDefaultBytesMax - 256) / corpus_.geometry.partial_row_bytes(/*f32=*/true);
  std::unique_ptr<v1::RequesterService::Stub> plain_stub_;
};

TEST_F(RequesterLimitsTest, AnAnswerThatTheClientDoesNotTakeIsRefusedBeforeItIsComputed) {
  const grpc::Status refused = Send(RequestOf(rows_fit_ + 1));
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), AllOf(HasSubstr("reply_bytes_max is 4194304"),
                                             HasSubstr(std::to_string(rows_fit_) + " rows fit"),
                                             HasSubstr("max_receive_message_length")));
  EXPECT_EQ(StatsOf(0).query_row_count(), 0u);
  // All of them do fit.
  const grpc::Status fits = Send(RequestOf(rows_fit_));
  EXPECT_TRUE(fits.ok()) << fits.error_message();
}

TEST_F(RequesterLimitsTest, AClientMayAcceptMore) {
  v1::AttendRequest request = RequestOf(rows_fit_ + 1000);
  request.set_reply_bytes_max(kMessageBytesMax);
  v1::AttendReply reply;
  const grpc::Status large = Attend(request, &reply);
  EXPECT_TRUE(large.ok()) << large.error_message();
  EXPECT_EQ(reply.row_count(), rows_fit_ + 1000);
  for (const uint64_t bytes_max : {0, 255, 256, 1000}) {
    request.set_reply_bytes_max(bytes_max);
    EXPECT_EQ(AttendCode(request), grpc::StatusCode::INVALID_ARGUMENT) << bytes_max;
  }
  // More than a server sends is as much as it sends.
  request.set_reply_bytes_max(UINT64_MAX);
  EXPECT_TRUE(Attend(request, &reply).ok());
}

TEST_F(RequesterLimitsTest, AnIndexOutsideTheChunksIsRefused) {
  v1::AttendRequest request = RequestOf(1);
  request.mutable_selection()->set_k(2);
  const auto send = [&](std::vector<int32_t> indices) {
    request.mutable_selection()->set_indices(Int32sToBytes(indices));
    return Send(request);
  };
  EXPECT_TRUE(send({-1, 4}).ok());
  for (const int32_t index : {5, -2, INT32_MIN, INT32_MAX}) {
    const grpc::Status refused = send({-1, index});
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << index;
    EXPECT_THAT(refused.error_message(),
                AllOf(HasSubstr(std::to_string(index)), HasSubstr("-1 is skipped")));
  }
}

// Goal: the error of a call that ran out of time states how much time it had.
// Method: 1 ms for 29 MB there and back.
TEST_F(RequesterLimitsTest, ADeadlineErrorHasTheTimeOfTheCall) {
  v1::AttendRequest request = RequestOf(kAttendRowCountMax);
  request.set_reply_bytes_max(kMessageBytesMax);
  v1::AttendReply reply;
  ASSERT_TRUE(Attend(RequestOf(1), &reply).ok());  // the lane is up from here on
  request.set_timeout_ms(1);
  const grpc::Status late = Attend(request, &reply);
  EXPECT_EQ(late.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(late.error_message(), AllOf(HasSubstr("the call had 1 ms"), HasSubstr("timeout_ms")));
}

// Goal: a drain waits for the end of a Fetch whose peer keeps reading.
TEST_F(RequesterLimitsTest, ADrainWaitsForAFetchInProgress) {
  const auto large = test::MakeTestCorpus(test::TestGeometry(1), {70'000}, /*seed=*/31);
  Load("large", large);
  v1::FetchRequest request;
  request.set_corpus("large");
  Call call(std::chrono::seconds(60));
  const auto reader = requester_stub_->Fetch(call.get(), request);
  v1::FetchReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  uint64_t tokens = reply.token_count();
  std::thread drain([&] { requester_->Drain(Soon(std::chrono::seconds(60))); });
  v1::AttendReply one;
  while (requester_stub_->Attend(Call().get(), RequestOf(1), &one).ok()) {
  }  // until the drain has begun
  while (reader->Read(&reply)) tokens += reply.token_count();
  const grpc::Status ended = reader->Finish();
  drain.join();
  EXPECT_TRUE(ended.ok()) << ended.error_message();
  EXPECT_EQ(tokens, 70'000u);
}

// Goal: a drain ends a Fetch whose peer reads nothing, soon and with a status to retry on.
TEST_F(RequesterLimitsTest, ADrainEndsAFetchWithUnavailable) {
  // 38 MB of rows, more than flow control and the buffers of sockets take of a peer that does not
  // read.
  const auto large = test::MakeTestCorpus(test::TestGeometry(1), {200'000}, /*seed=*/31);
  Load("large", large);
  v1::FetchRequest request;
  request.set_corpus("large");
  Call call(std::chrono::seconds(60));
  const auto reader = requester_stub_->Fetch(call.get(), request);
  v1::FetchReply reply;
  ASSERT_TRUE(reader->Read(&reply));  // so it is in progress
  const Instant start = Clock::Real()->Now();
  requester_->Drain(start + std::chrono::seconds(60));
  EXPECT_LT(Clock::Real()->Now() - start, std::chrono::seconds(30));
  while (reader->Read(&reply)) {
  }
  const grpc::Status ended = reader->Finish();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(ended.error_message(), HasSubstr("draining"));
}

}  // namespace
}  // namespace ckv
