#include "client/ctl/top/top_sample.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"

namespace ckv::ctl {
namespace {

void Ask(const Fleet& fleet, TopMember& asked) {
  grpc::ClientContext context;
  fleet.Prepare(context);
  if (asked.member.role == MemberRole::kHolder) {
    const grpc::Status status = ConnectHolder(asked.member)->Stats(&context, {}, &asked.stats);
    asked.status = HolderError(status, asked.member, "Stats");
    return;
  }
  const auto stub = v1::RequesterService::NewStub(MakeChannel(asked.member.control_address));
  asked.status = FromGrpc(stub->Describe(&context, {}, &asked.description), "Describe");
}

void AskAll(const Fleet& fleet, std::vector<TopMember>& members) {
  std::atomic<size_t> next{0};
  const auto ask = [&] {
    for (size_t i = next++; i < members.size(); i = next++) Ask(fleet, members[i]);
  };
  std::vector<std::thread> askers(std::min(kAskerCountMax, members.size()));
  for (std::thread& asker : askers) asker = std::thread(ask);
  for (std::thread& asker : askers) asker.join();
}

}  // namespace

TopSample TakeSample(Fleet& fleet, const TopSample* before) {
  TopSample sample;
  absl::StatusOr<std::vector<Member>> known = fleet.Members(&sample.ended);
  sample.directory_status = known.status();
  sample.directory = fleet.directory_address();
  if (known.ok()) {
    for (Member& member : *known)
      sample.members.push_back({std::move(member), absl::OkStatus(), {}, {}});
  } else if (before != nullptr) {
    sample.ended = before->ended;
    for (const TopMember& member : before->members)
      sample.members.push_back({member.member, absl::OkStatus(), {}, {}});
  }
  AskAll(fleet, sample.members);
  sample.at = fleet.clock().Now();
  return sample;
}

}  // namespace ckv::ctl
