#include "tests/sim/upkeep_calls.h"

#include <utility>

#include "proto/base/status.h"

namespace ckv::sim {
namespace {

// One layer of a chunk.
using LayerRows = std::vector<std::vector<std::byte>>;

}  // namespace

absl::StatusOr<std::vector<CopyOrder>> CopyCalls::ListOrders(uint64_t lease_id, uint32_t count_max,
                                                             Instant deadline) {
  using Orders = absl::StatusOr<std::vector<CopyOrder>>;
  if (cancelled_) return absl::CancelledError("cancelled");
  Orders orders =
      CallDirectory<Orders>(directories_, life_, life_.clock.TimeOf(deadline), CallTo::kLeader,
                            [lease_id, count_max](DirectoryState& state) {
                              return state.replication().ListOrders(lease_id, count_max);
                            });
  if (!orders.ok()) return orders;
  for (const CopyOrder& order : *orders) {
    if (order.is_leased) leased_.insert(order.chunk.id);
  }
  return orders;
}

absl::Status CopyCalls::Report(uint64_t lease_id, std::span<const CopyReport> reports,
                               Instant deadline) {
  if (cancelled_) return absl::CancelledError("cancelled");
  absl::Status reported = CallDirectory<absl::Status>(
      directories_, life_, life_.clock.TimeOf(deadline), CallTo::kLeader,
      [lease_id, copy = std::vector<CopyReport>(reports.begin(), reports.end())](
          DirectoryState& state) { return state.replication().ReportCopies(lease_id, copy); });
  for (const CopyReport& report : reports) {
    if (reported.ok() && report.error.empty() && leased_.contains(report.id))
      directories_.network->Count(Fault::kLeasedCopy);
  }
  return reported;
}

template <typename R>
R CopyCalls::CallHolder(const Member& holder, Instant deadline, std::function<R(Holder&)> handler) {
  if (cancelled_) return R(absl::CancelledError("cancelled"));
  Node* const node = NodeAt(nodes_, holder.control_address);
  if (node == nullptr) {
    return R(absl::InvalidArgumentError("no such node: " + holder.control_address));
  }
  return CallNode<R>(*directories_.network, &life_.process, *node, life_.clock.TimeOf(deadline),
                     [handler = std::move(handler)](Life& life) -> R {
                       if (life.holder == nullptr) return R(Starting());
                       return handler(*life.holder);
                     });
}

absl::StatusOr<ChunkInfo> CopyCalls::GetInfo(const Member& holder, const CopyOrder& order,
                                             Instant deadline) {
  using Info = absl::StatusOr<ChunkInfo>;
  return CallHolder<Info>(holder, deadline, [order](Holder& from) -> Info {
    return from.store().InfoOf(order.chunk.id, order.geometry, order.corpus.first);
  });
}

absl::Status CopyCalls::ReadRows(const Member& holder, const CopyOrder& order, TakeRows take,
                                 Instant deadline) {
  using Rows = absl::StatusOr<LayerRows>;
  CKV_ASSIGN_OR_RETURN(
      const LayerRows layers, CallHolder<Rows>(holder, deadline, [order](Holder& from) -> Rows {
        CKV_ASSIGN_OR_RETURN(
            const ChunkLocator found,
            from.store().table().Find(order.chunk.id, order.geometry, order.corpus.first));
        CKV_ASSIGN_OR_RETURN(const ChunkPin pin, from.store().Load(found));
        LayerRows copy;
        for (uint32_t layer = 0; layer < order.geometry.layers; ++layer) {
          const std::span<const std::byte> rows = pin.chunk().layer(layer);
          copy.emplace_back(rows.begin(), rows.end());
        }
        return copy;
      }));
  for (uint32_t layer = 0; layer < layers.size(); ++layer) {
    CKV_RETURN_IF_ERROR(take(layer, 0, layers[layer]));
  }
  return absl::OkStatus();
}

template <typename R>
R PlacementCalls::Call(Instant deadline, std::function<R(PlacementSource&)> handler) {
  return CallDirectory<R>(directories_, life_, life_.clock.TimeOf(deadline), CallTo::kLeader,
                          [handler = std::move(handler)](DirectoryState& state) {
                            LocalPlacementSource source(&state);
                            return handler(source);
                          });
}

absl::StatusOr<PlacementSource::Placed> PlacementCalls::ListPlacedCorpora(const HolderId& holder,
                                                                          const SeenDirectory& seen,
                                                                          Instant deadline) {
  return Call<absl::StatusOr<Placed>>(deadline, [holder, seen](PlacementSource& source) {
    return source.ListPlacedCorpora(holder, seen, kInstantMax);
  });
}

absl::StatusOr<CorpusPart> PlacementCalls::GetPart(const HolderId& holder,
                                                   const CorpusParts::Key& key, Instant deadline) {
  return Call<absl::StatusOr<CorpusPart>>(deadline, [holder, key](PlacementSource& source) {
    return source.GetPart(holder, key, kInstantMax);
  });
}

absl::StatusOr<bool> PlacementCalls::ReportPart(uint64_t lease_id, const CorpusPart& part,
                                                Instant deadline) {
  return Call<absl::StatusOr<bool>>(deadline, [lease_id, part](PlacementSource& source) {
    return source.ReportPart(lease_id, part, kInstantMax);
  });
}

absl::StatusOr<bool> PlacementCalls::ReportDropped(uint64_t lease_id, const SeenDirectory& seen,
                                                   std::span<const DroppedCorpus> dropped,
                                                   Instant deadline) {
  return Call<absl::StatusOr<bool>>(
      deadline, [lease_id, seen, copy = std::vector<DroppedCorpus>(dropped.begin(), dropped.end())](
                    PlacementSource& source) {
        return source.ReportDropped(lease_id, seen, copy, kInstantMax);
      });
}

absl::Status PlacementCalls::ReportLacking(uint64_t lease_id, std::span<const ChunkId> ids,
                                           Instant deadline) {
  return Call<absl::Status>(
      deadline,
      [lease_id, copy = std::vector<ChunkId>(ids.begin(), ids.end())](PlacementSource& source) {
        return source.ReportLacking(lease_id, copy, kInstantMax);
      });
}

absl::StatusOr<std::vector<uint32_t>> PlacementCalls::CountReferences(const HolderId& holder,
                                                                      std::span<const ChunkId> ids,
                                                                      Instant deadline) {
  return Call<absl::StatusOr<std::vector<uint32_t>>>(
      deadline,
      [holder, copy = std::vector<ChunkId>(ids.begin(), ids.end())](PlacementSource& source) {
        return source.CountReferences(holder, copy, kInstantMax);
      });
}

absl::Status PlacementCalls::FinishReport(uint64_t lease_id, Instant deadline) {
  return Call<absl::Status>(deadline, [lease_id](PlacementSource& source) {
    return source.FinishReport(lease_id, kInstantMax);
  });
}

HolderUpkeep::HolderUpkeep(const Directories* directories, Life* life,
                           std::vector<std::unique_ptr<Node>>* nodes, SimDisk* disk)
    : copy_calls_(directories, life, nodes), placement_calls_(directories, life) {
  Holder* const holder = life->holder;
  const std::string name = (*nodes)[life->process.node]->name;
  CopyMakerOptions copies;
  copies.name = name;
  copies.clock = &life->clock;
  copies.call_timeout = std::chrono::seconds(1);
  copies.copy_timeout = std::chrono::seconds(2);
  copies_ = std::make_unique<CopyMaker>(copies, &holder->store(), &copy_calls_);
  std::string damaged;
  auto parts = CorpusParts::Open(disk, "/store", &damaged);
  while (!parts.ok() && !life->ending) {
    Sim().SleepUntil(Sim().now() + 500 * kMs);
    parts = CorpusParts::Open(disk, "/store", &damaged);
  }
  if (!parts.ok()) return;
  parts_ = *std::move(parts);
  PlacementKeeperOptions placement;
  placement.self = {name};
  placement.clock = &life->clock;
  placement.round_timeout = std::chrono::seconds(5);
  placement.drop_after = std::chrono::seconds(20);
  keeper_ = std::make_unique<PlacementKeeper>(
      placement, &placement_calls_, parts_.get(),
      PlacedChunks{.has = [holder](const ChunkId& id) { return holder->table().Contains(id); },
                   .change_count = [holder] { return holder->table().change_count(); },
                   .drop =
                       [holder](const ChunkId& id, Duration idle_min) {
                         return holder->store().Drop(id, {.not_kept = true, .idle_min = idle_min});
                       }});
}

void HolderUpkeep::Note(const LeaseGrant& grant, const LeaseRenewal& renewal) {
  if (keeper_ != nullptr) keeper_->Note(grant, renewal.placed_change_count);
  copies_->Note(grant.lease_id, renewal.copy_order_count);
}

void HolderUpkeep::End() {
  copies_.reset();
  keeper_.reset();
}

MemberHealth HealthOf(const Holder& holder, const Life& life) {
  MemberHealth health;
  const HolderStats stats = holder.stats();
  health.chunk_count = stats.table.chunk_count;
  health.used_bytes = stats.table.used_bytes;
  health.capacity_bytes = stats.table.capacity_bytes;
  health.is_durable = true;
  health.disk = {.free_bytes = 1 << 29, .total_bytes = 1 << 30, .read_only = false};
  health.is_past_elbow = Sim().now() < life.past_elbow_until;
  if (health.is_past_elbow) health.hot = life.hot;
  return health;
}

}  // namespace ckv::sim
