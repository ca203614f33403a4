#include "tests/sim/repair_calls.h"

#include <algorithm>
#include <string>
#include <utility>

#include "proto/base/status.h"

namespace ckv::sim {
namespace {

RepairerOptions RepairOptionsOf(Life& life) {
  RepairerOptions options;
  options.name = life.process.name;
  options.clock = &life.clock;
  options.attempt_timeout = std::chrono::seconds(2);
  return options;
}

// Some 20 kB: a pass takes less than a second.
ScrubberOptions ScrubOptionsOf(Life& life) {
  ScrubberOptions options;
  options.name = life.process.name;
  options.clock = &life.clock;
  options.bytes_per_second = 64 << 10;
  options.seed = life.process.node;
  options.pass_period_min = std::chrono::seconds(2);
  return options;
}

}  // namespace

absl::StatusOr<RepairSource::Restored> RepairCalls::Restore(const LostChunk& lost,
                                                            Instant deadline) {
  std::vector<std::string> tenants = lost.readers;
  if (tenants.empty()) tenants = {"", "t1"};
  CKV_ASSIGN_OR_RETURN(const std::vector<Member> members, directory_.ListMembers(deadline));
  absl::Status last = absl::NotFoundError("no corpus places it here");
  for (const std::string& tenant : tenants) {
    const auto places = directory_.LocateChunk(lost.id, tenant, deadline);
    if (absl::IsNotFound(places.status())) continue;
    if (!places.ok()) return places.status();
    for (const Corpus& place : *places) {
      const absl::Status restored = RestoreFor(place, members, deadline);
      if (restored.ok()) {
        network_.Count(Fault::kRepair);
        return Restored{place.geometry, place.tenant};
      }
      if (absl::IsNotFound(last) || absl::IsFailedPrecondition(last)) last = restored;
    }
  }
  return last;
}

absl::Status RepairCalls::RestoreFor(const Corpus& place, const std::vector<Member>& members,
                                     Instant deadline) {
  const ChunkPlacement& chunk = place.chunks.at(0);
  std::vector<HolderId> holders = chunk.holders();
  holders.insert(holders.end(), chunk.leased().begin(), chunk.leased().end());
  CopyOrder order;
  order.corpus = {place.tenant, place.name};
  order.geometry = place.geometry;
  order.chunk = chunk;
  absl::Status last = absl::FailedPreconditionError("no other holder has it");
  for (const Member& member : members) {
    if (member.role != MemberRole::kHolder || member.id == self_) continue;
    if (std::find(holders.begin(), holders.end(), member.id) == holders.end()) continue;
    last = CopyFrom(member, order, deadline);
    if (last.ok() || life_.clock.Now() >= deadline) return last;
  }
  return last;
}

absl::Status RepairCalls::CopyFrom(const Member& from, const CopyOrder& order, Instant deadline) {
  CKV_ASSIGN_OR_RETURN(const ChunkInfo info, copies_.GetInfo(from, order, deadline));
  CKV_ASSIGN_OR_RETURN(ChunkPut put,
                       life_.holder->store().Begin(info, order.geometry, order.corpus.first));
  CKV_RETURN_IF_ERROR(copies_.ReadRows(
      from, order,
      [&put](uint32_t layer, uint64_t offset, std::span<const std::byte> rows) {
        return put.Write(layer, offset, rows);
      },
      deadline));
  return std::move(put).Finish();
}

HolderScrub::HolderScrub(const Directories* directories, Life* life,
                         std::vector<std::unique_ptr<Node>>* nodes)
    : source_(directories, life, nodes),
      repairer_(
          RepairOptionsOf(*life), &life->holder->store(), &source_,
          [life] { return Sim().now() < life->may_answer_until; }, &life->holder->scrub_counters()),
      scrubber_(ScrubOptionsOf(*life), &life->holder->store(), &life->holder->scrub_counters()) {}

}  // namespace ckv::sim
