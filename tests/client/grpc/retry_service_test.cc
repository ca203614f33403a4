// Goal: the hint of an overloaded holder reaches the client that calls the requester over gRPC.

#include <grpcpp/grpcpp.h>

#include "client/grpc/grpc_status.h"
#include "client/requester.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/services/requester_service.h"
#include "tests/support/fake_holder.h"
#include "tests/support/test_fleet.h"

namespace ckv {
namespace {

using test::FakeHolder;
using test::MakeTestCorpus;
using test::TestFleet;
using test::TestGeometry;
using testing::HasSubstr;

struct RetryService : testing::Test {
  RetryService() {
    RequesterOptions options;
    options.fabrics = {fabric.get()};
    requester = *Requester::Create(options, &holder, &holder);
    RequesterServiceOptions service_options;
    service_options.directory_address = [] { return std::string(); };
    service_options.directory_connected = [] { return true; };
    service = std::make_unique<RequesterServiceImpl>(service_options, requester.get(), &gate);
    grpc::ServerBuilder builder;
    builder.RegisterService(service.get());
    server = builder.BuildAndStart();
    stub = v1::RequesterService::NewStub(server->InProcessChannel({}));
    request.set_corpus("c");
    request.set_row_count(4);
    request.set_q(std::string(4 * corpus.geometry.query_row_bytes(), '\0'));
  }
  static void Refuse(const RequestHeader& header, ServeLane& lane, const Arrival& arrival) {
    const uint32_t bytes = EncodeErrorReply(header, absl::ResourceExhaustedError("too much to do"),
                                            1500, lane.reply(arrival.slot));
    lane.Post(arrival.slot, bytes).IgnoreError();
  }
  static std::string HintOf(const grpc::ClientContext& context) {
    const auto& metadata = context.GetServerTrailingMetadata();
    const auto found = metadata.find(kRetryAfterKey);
    if (found == metadata.end()) return "";
    return std::string(found->second.data(), found->second.size());
  }

  test::TestCorpus corpus = MakeTestCorpus(TestGeometry(), {5}, 1);
  std::unique_ptr<Fabric> fabric = NewLoopbackFabric(Clock::Real());
  FakeHolder holder{fabric.get(), corpus.Publish("c", "", {{TestFleet::Name(0)}}), Refuse};
  std::unique_ptr<Requester> requester;
  ServiceGate gate{4};
  std::unique_ptr<RequesterServiceImpl> service;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<v1::RequesterService::Stub> stub;
  v1::AttendRequest request;
};

TEST_F(RetryService, SetsTrailingMetadataAndTheText) {
  grpc::ClientContext context;
  v1::AttendReply reply;
  const grpc::Status status = stub->Attend(&context, request, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("too much to do; retry in 1500 us"));
  EXPECT_EQ(HintOf(context), "1500");
  v1::DescribeReply described;
  grpc::ClientContext describing;
  ASSERT_TRUE(stub->Describe(&describing, {}, &described).ok());
  EXPECT_EQ(described.retry_count(), 2u);
}

TEST_F(RetryService, SetsTheHintOfAFetch) {
  grpc::ClientContext context;
  v1::FetchRequest fetch;
  fetch.set_corpus("c");
  v1::FetchReply reply;
  const auto reader = stub->Fetch(&context, fetch);
  EXPECT_FALSE(reader->Read(&reply));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(HintOf(context), "1500");
}

TEST_F(RetryService, InAStreamsReply) {
  grpc::ClientContext context;
  const auto stream = stub->AttendStream(&context);
  v1::AttendStreamReply reply;
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&reply));
  EXPECT_EQ(reply.code(), static_cast<uint32_t>(grpc::StatusCode::RESOURCE_EXHAUSTED));
  EXPECT_EQ(reply.retry_after_us(), 1500u);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

}  // namespace
}  // namespace ckv
