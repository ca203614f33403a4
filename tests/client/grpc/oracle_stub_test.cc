// Goal: an OracleService is queried for the wanted hosts, trusted within the limits, and not needed
// while it is unreachable.

#include "client/grpc/oracle_stub.h"

#include <grpcpp/grpcpp.h>

#include <memory>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ckv {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class FakeOracle final : public v1::OracleService::Service {
 public:
  FakeOracle() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeOracle() override { server_->Shutdown(); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  grpc::Status GetCosts(grpc::ServerContext*, const v1::GetCostsRequest* request,
                        v1::GetCostsReply* reply) override {
    absl::MutexLock lock(&mu_);
    requested_ = *request;
    *reply = answer_;
    return status_;
  }
  void Answer(const v1::GetCostsReply& reply, grpc::Status status = grpc::Status::OK) {
    absl::MutexLock lock(&mu_);
    answer_ = reply;
    status_ = std::move(status);
  }
  v1::GetCostsRequest requested() {
    absl::MutexLock lock(&mu_);
    return requested_;
  }

 private:
  absl::Mutex mu_;
  v1::GetCostsRequest requested_ ABSL_GUARDED_BY(mu_);
  v1::GetCostsReply answer_ ABSL_GUARDED_BY(mu_);
  grpc::Status status_ ABSL_GUARDED_BY(mu_);
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

v1::GetCostsReply TwoTiers() {
  v1::GetCostsReply reply;
  for (const double bandwidth : {12.5e9, 3.125e9}) {
    v1::GetCostsReply::Tier* tier = reply.add_tiers();
    tier->set_bandwidth_bytes_per_s(bandwidth);
    tier->set_latency_us(3);
    tier->set_congestion(0.25);
  }
  v1::GetCostsReply::Holder* holder = reply.add_holders();
  holder->set_host("h1");
  holder->set_tier(1);
  return reply;
}

struct OracleStubTest : testing::Test {
  NetworkOracleOptions Options() {
    NetworkOracleOptions options;
    options.requester_host = "r";
    options.clock = &clock;
    options.timeout = std::chrono::seconds(30);
    return options;
  }
  ManualClock clock;
  FakeOracle service;
  NetworkOracle oracle{std::make_unique<OracleStub>(service.address()), Options()};
};

TEST_F(OracleStubTest, ReturnsPathsToTheRequestedHosts) {
  service.Answer(TwoTiers());
  EXPECT_FALSE(oracle.PathTo("h1").has_value());
  EXPECT_FALSE(oracle.PathTo("h1").has_value());
  ASSERT_TRUE(oracle.Refresh().ok());
  EXPECT_EQ(service.requested().requester_host(), "r");
  EXPECT_THAT(service.requested().holder_hosts(), ElementsAre("h1"));
  const auto path = oracle.PathTo("h1");
  ASSERT_TRUE(path.has_value());
  EXPECT_EQ(path->tier, 1u);
  EXPECT_EQ(path->bandwidth_bytes_per_s, 3.125e9);
  EXPECT_EQ(path->congestion, 0.25);
  EXPECT_FALSE(oracle.PathTo("h2").has_value());
}

TEST_F(OracleStubTest, UsesTheAgeInTheReply) {
  clock.Advance(std::chrono::hours(1));
  v1::GetCostsReply reply = TwoTiers();
  reply.set_age_ms(60'001);
  service.Answer(reply);
  ASSERT_TRUE(oracle.Refresh().ok());
  EXPECT_EQ(oracle.PathTo("h1")->congestion, 0);
  reply.set_age_ms(59'999);
  service.Answer(reply);
  ASSERT_TRUE(oracle.Refresh().ok());
  EXPECT_EQ(oracle.PathTo("h1")->congestion, 0.25);
  reply.set_age_ms(~uint64_t{0});
  service.Answer(reply);
  // An answer that is older than the cached one does not replace it.
  ASSERT_TRUE(oracle.Refresh().ok());
  EXPECT_EQ(oracle.PathTo("h1")->congestion, 0.25);
}

TEST_F(OracleStubTest, RefusesValuesOutsideTheLimits) {
  const auto refused = [&](auto change, const char* error) {
    v1::GetCostsReply reply = TwoTiers();
    change(reply);
    service.Answer(reply);
    const absl::Status status = oracle.Refresh();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(error));
    EXPECT_THAT(std::string(status.message()), HasSubstr(service.address()));
  };
  refused([](auto& r) { r.mutable_tiers(1)->set_congestion(1); }, "tiers[1].congestion");
  refused([](auto& r) { r.mutable_tiers(0)->set_bandwidth_bytes_per_s(0); }, "tiers[0].bandwidth");
  refused([](auto& r) { r.mutable_holders(0)->set_tier(2); }, "hosts[h1].tier: 2");
  refused([](auto& r) { r.mutable_holders(0)->clear_host(); }, "a name of 0 bytes");
  refused([](auto& r) { r.clear_tiers(); }, "tiers: 0");
  refused(
      [](auto& r) {
        while (r.tiers_size() <= 16) r.add_tiers();
      },
      "tiers: 17");
  EXPECT_EQ(oracle.Snapshot(), nullptr);
}

TEST_F(OracleStubTest, KeepsItsReadingAfterTheServiceEnds) {
  service.Answer(TwoTiers());
  ASSERT_TRUE(oracle.Refresh().ok());
  service.Answer({}, grpc::Status(grpc::StatusCode::UNAVAILABLE, "closed"));
  EXPECT_EQ(oracle.Refresh().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(oracle.PathTo("h1").has_value());
}

}  // namespace
}  // namespace ckv
