// A fleet in this process and ckvctl against it, for tests of corpus load and export.

#pragma once

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "client/tools/ctl/ctl.h"
#include "tests/client/tools/ctl/load_files.h"
#include "tests/server/services/services_fixture.h"

namespace ckv::test {

class LoadFleet : public ServicesTest {
 protected:
  // Holders with a folder each, found again by the same index.
  void StartDurableHolders(size_t count, size_t capacity_bytes = 16u << 20) {
    for (size_t i = 0; i < count; ++i) StartDurableHolder(i, capacity_bytes);
  }
  void StartDurableHolder(size_t index, size_t capacity_bytes = 16u << 20) {
    Config config = MemberOf({"holder"}, "h" + std::to_string(index));
    config.store_capacity_bytes = capacity_bytes;
    // Of this test alone: others of this process have holders of the same names.
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    config.store_path = TempPath(std::string(test->name()) + "-h" + std::to_string(index));
    std::filesystem::create_directories(config.store_path);
    if (holders_.size() <= index) {
      holders_.resize(index + 1);
      holder_stubs_.resize(index + 1);
    }
    holders_[index] = StartDaemon(config);
    holder_stubs_[index] = v1::HolderService::NewStub(MakeChannel(holders_[index]->address()));
  }
  void StopHolder(size_t index) {
    holders_[index]->Drain(Soon());
    holders_[index].reset();
  }

  struct Outcome {
    int code;
    std::string out;
    std::string err;
    ctl::Json json;  // of a command that ended well
  };
  Outcome Run(std::vector<std::string> arguments, const std::string& tenant = "") const {
    std::ostringstream out, err;
    ctl::Ctl ctl;
    ctl.out = &out;
    ctl.err = &err;
    ctl.fleet.requester = requester_ == nullptr ? "127.0.0.1:1" : requester_->address();
    ctl.fleet.directory = directory_->address();
    ctl.fleet.tenant = tenant;
    arguments.insert(arguments.end(), {"-o", "json"});
    const int code = ctl::RunCtl(ctl, std::move(arguments));
    return {code, out.str(), err.str(),
            code == 0 ? ctl::Json::parse(out.str(), nullptr, false) : ctl::Json()};
  }
  ctl::Json MustRun(std::vector<std::string> arguments, const std::string& tenant = "") const {
    const Outcome outcome = Run(std::move(arguments), tenant);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.json;
  }

  // Of all holders, as they are registered.
  std::vector<Member> Members() const {
    v1::ListMembersReply reply;
    EXPECT_TRUE(directory_stub_->ListMembers(Call().get(), {}, &reply).ok());
    std::vector<Member> members;
    for (const v1::Member& message : reply.members()) members.push_back(*FromProto(message));
    std::sort(members.begin(), members.end(),
              [](const Member& a, const Member& b) { return a.id < b.id; });
    return members;
  }
};

}  // namespace ckv::test
