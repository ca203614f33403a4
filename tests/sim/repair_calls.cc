#include "tests/sim/repair_calls.h"

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

absl::Status RepairCalls::CopyFrom(const Member& from, const Corpus& place, Instant deadline) {
  CopyOrder order;
  order.corpus = {place.tenant, place.name};
  order.geometry = place.geometry;
  order.chunk = place.chunks[0];
  CKV_ASSIGN_OR_RETURN(const ChunkInfo info, copies_.GetInfo(from, order, deadline));
  CKV_ASSIGN_OR_RETURN(ChunkPut put,
                       life_.holder->store().Begin(info, order.geometry, order.corpus.first));
  CKV_RETURN_IF_ERROR(copies_.ReadRows(
      from, order,
      [&put](uint32_t layer, uint64_t offset, std::span<const std::byte> rows) {
        return put.Write(layer, offset, rows);
      },
      deadline));
  CKV_RETURN_IF_ERROR(std::move(put).Finish());
  network_.Count(Fault::kRepair);
  return absl::OkStatus();
}

HolderScrub::HolderScrub(const Directories* directories, Life* life,
                         std::vector<std::unique_ptr<Node>>* nodes)
    : source_(directories, life, nodes),
      repairer_(
          RepairOptionsOf(*life), &life->holder->store(), &source_,
          [life] { return Sim().now() < life->may_answer_until; }, &life->holder->scrub_counters()),
      scrubber_(ScrubOptionsOf(*life), &life->holder->store(), &life->holder->scrub_counters()) {}

}  // namespace ckv::sim
