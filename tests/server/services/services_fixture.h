// Whole daemons in this process, each on a port of its own, and stubs to ask them.

#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/daemon/daemon.h"
#include "tests/server/services/control_client.h"
#include "tests/support/soon.h"

namespace ckv::test {

inline Config ConfigOf(std::vector<std::string> role, const std::string& name) {
  Config config;
  config.role = std::move(role);
  config.name = name;
  config.listen = "127.0.0.1:0";
  config.store_capacity_bytes = 16u << 20;
  config.call_count_max = 4;
  config.drain_timeout = std::chrono::seconds(2);
  return config;
}

inline std::unique_ptr<Daemon> StartDaemon(const Config& config) {
  auto daemon = Daemon::Start(config);
  if (!daemon.ok()) {
    ADD_FAILURE() << daemon.status();
    std::abort();
  }
  const absl::Status ready = (*daemon)->AwaitReady(Soon());
  EXPECT_TRUE(ready.ok()) << ready;
  EXPECT_TRUE((*daemon)->ready());
  return *std::move(daemon);
}

class ServicesTest : public testing::Test {
 protected:
  void SetUp() override { StartDirectory(ConfigOf({"directory"}, "d")); }

  void StartDirectory(const Config& config) {
    directory_ = StartDaemon(config);
    directory_channel_ = MakeChannel(directory_->address());
    directory_stub_ = v1::DirectoryService::NewStub(directory_channel_);
  }
  // Returns its address, for the next one.
  std::string EndDirectory() {
    std::string address = directory_->address();
    directory_stub_.reset();
    directory_channel_.reset();
    directory_.reset();
    return address;
  }
  // A process of this fleet, not started yet.
  Config MemberOf(std::vector<std::string> role, const std::string& name) {
    Config config = ConfigOf(std::move(role), name);
    config.directory = directory_->address();
    return config;
  }
  void StartHolders(size_t count) {
    holders_.resize(count);
    holder_stubs_.resize(count);
    for (size_t i = 0; i < count; ++i) StartHolderAgain(i);
  }
  void StartHolderAgain(size_t i) {
    Config config = MemberOf({"holder"}, "h" + std::to_string(i));
    config.metrics_address = holder_metrics_address_;
    config.store_capacity_bytes = holder_capacity_bytes_;
    holders_[i] = StartDaemon(config);
    holder_stubs_[i] = v1::HolderService::NewStub(MakeChannel(holders_[i]->address()));
  }
  void StartRequester() {
    requester_ = StartDaemon(MemberOf({"requester"}, "r"));
    requester_stub_ = v1::RequesterService::NewStub(MakeChannel(requester_->address()));
  }

  // Puts the corpus' chunks on the holders in turn and publishes it.
  void Load(const std::string& name, const TestCorpus& corpus) {
    std::vector<std::vector<HolderId>> placement;
    for (size_t i = 0; i < holders_.size(); ++i) placement.push_back({{"h" + std::to_string(i)}});
    for (size_t i = 0; i < corpus.chunks.size(); ++i) {
      const grpc::Status put =
          Put(*holder_stubs_[i % holders_.size()], corpus.geometry, corpus.chunks[i]);
      ASSERT_TRUE(put.ok()) << put.error_message();
    }
    const grpc::Status published = Publish(*directory_stub_, corpus.Publish(name, "", placement));
    ASSERT_TRUE(published.ok()) << published.error_message();
  }

  v1::StatsReply StatsOf(size_t holder) {
    Call call;
    v1::StatsReply stats;
    const grpc::Status status = holder_stubs_[holder]->Stats(call.get(), {}, &stats);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return stats;
  }

  grpc::Status Attend(const v1::AttendRequest& request, v1::AttendReply* reply) {
    Call call;
    return requester_stub_->Attend(call.get(), request, reply);
  }
  grpc::StatusCode AttendCode(const v1::AttendRequest& request) {
    v1::AttendReply reply;
    const grpc::Status status = Attend(request, &reply);
    EXPECT_THAT(status.error_message(), testing::Not(testing::IsEmpty()));
    return status.error_code();
  }

  std::unique_ptr<Daemon> directory_;
  std::shared_ptr<grpc::Channel> directory_channel_;
  std::unique_ptr<v1::DirectoryService::Stub> directory_stub_;
  std::string holder_metrics_address_;  // of holders that start; none if empty
  size_t holder_capacity_bytes_ = ConfigOf({}, {}).store_capacity_bytes;
  std::vector<std::unique_ptr<Daemon>> holders_;
  std::vector<std::unique_ptr<v1::HolderService::Stub>> holder_stubs_;
  std::unique_ptr<Daemon> requester_;
  std::unique_ptr<v1::RequesterService::Stub> requester_stub_;
};

}  // namespace ckv::test
