// Places chunks where they fit. PlaceByCapacity, in order: places by hash as if there were space;
// queries the free space of the holders concerned (CapacityReader); returns that placement if it
// fits. Else it queries all holders, and which chunks they have already, and PlaceInCapacity deals
// ranges of chunks to the holders with the most space, in ever shorter ranges. Holders that did not
// report it are last. If even single chunks do not fit, it is an error, unless a holder may have
// them already.

#include "client/publish/capacity_placement.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/grpc/grpc_status.h"
#include "client/publish/holder_calls.h"
#include "proto/base/status.h"
#include "store/corpus/placement.h"
#include "store/memory/chunk.h"

namespace ckv {
namespace {

// Ids of one page: 60 bytes each.
constexpr uint32_t kPageChunks = 4096;
// Holders that an error names.
constexpr size_t kNamedMax = 8;

std::string Mebibytes(uint64_t bytes) {
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

// The space that is left while chunks are dealt.
class Dealer {
 public:
  Dealer(const ChunkSource& chunks, std::span<const uint32_t> fresh,
         std::span<const HolderId> holders, const HolderCapacities& capacities,
         std::span<const FailureDomain> domains)
      : chunks_(chunks),
        fresh_(fresh),
        holders_(holders),
        capacities_(capacities),
        domains_(domains) {}

  // Deals ranges of `run` chunks, aligned in the corpus. Returns nothing if one does not fit.
  // Holders that did not report their space get `unreported_bytes` at most.
  std::optional<SourcePlacement> Deal(size_t corpus_size, size_t run, uint32_t replicas,
                                      uint64_t unreported_bytes) const {
    std::vector<uint64_t> left;
    for (const HolderId& holder : holders_) {
      const uint64_t free_bytes = FreeBytesOf(holder);
      left.push_back(free_bytes == UINT64_MAX ? unreported_bytes : free_bytes);
    }
    SourcePlacement placement(chunks_.chunks().size());
    for (size_t i = 0; i < fresh_.size();) {
      const size_t end = std::min(fresh_.size(), i + run - (corpus_size + i) % run);
      const std::vector<size_t> taken = Choose(fresh_.subspan(i, end - i), left, replicas);
      if (taken.size() < replicas) return std::nullopt;
      for (; i < end; ++i) {
        for (const size_t h : taken) placement[fresh_[i]].push_back(holders_[h]);
      }
    }
    return placement;
  }

 private:
  uint64_t FreeBytesOf(const HolderId& holder) const {
    const auto found = capacities_.find(holder.name);
    return found == capacities_.end() ? UINT64_MAX : found->second.free_bytes;
  }
  uint64_t NeedOf(const HolderId& holder, std::span<const uint32_t> run) const {
    const auto found = capacities_.find(holder.name);
    uint64_t need = 0;
    for (const uint32_t i : run) {
      const PlannedChunk& chunk = chunks_.chunks()[i];
      if (found != capacities_.end() && found->second.present.contains(chunk.id)) continue;
      need += StoreBytesOf(chunks_.geometry(), chunk.token_count);
    }
    return need;
  }
  // The holders for a range: those that need the least space for it, then those with the most left.
  // Those after the first are as far apart as possible, before anything else. Returns fewer than
  // `replicas` if there are too few.
  std::vector<size_t> Choose(std::span<const uint32_t> run, std::vector<uint64_t>& left,
                             uint32_t replicas) const {
    std::vector<uint64_t> need;
    std::vector<size_t> fit;
    for (size_t h = 0; h < holders_.size(); ++h) {
      need.push_back(NeedOf(holders_[h], run));
      if (need[h] <= left[h]) fit.push_back(h);
    }
    std::stable_sort(fit.begin(), fit.end(), [&](size_t a, size_t b) {
      return need[a] != need[b] ? need[a] < need[b] : left[a] > left[b];
    });
    if (fit.size() < replicas) return fit;
    std::vector<size_t> taken;
    while (taken.size() < replicas) {
      const bool is_free = taken.empty() || domains_.empty();
      taken.push_back(is_free ? fit.front() : FarthestOf(fit, taken, domains_));
      std::erase(fit, taken.back());
      left[taken.back()] -= need[taken.back()];
    }
    return taken;
  }

  const ChunkSource& chunks_;
  const std::span<const uint32_t> fresh_;
  const std::span<const HolderId> holders_;
  const HolderCapacities& capacities_;
  const std::span<const FailureDomain> domains_;
};

}  // namespace

uint64_t StoreBytesOf(const Geometry& geometry, uint32_t token_count) {
  return ChunkLayout(geometry, token_count).total_bytes();
}

void CapacityReader::Read(std::span<const HolderId> ids, HolderCapacities& capacities) const {
  const Instant end = std::min(deadline_, clock_.Now() + kCapacityTimeout);
  for (const Member& holder : holders_) {
    if (std::find(ids.begin(), ids.end(), holder.id) == ids.end()) continue;
    const auto [capacity, is_new] = capacities.try_emplace(holder.id.name);
    if (!is_new || clock_.Now() >= end) continue;
    const auto stub = ConnectStore(holder);
    grpc::ClientContext context;
    SetDeadline(context, clock_, end, kCapacityTimeout);
    v1::GetCapacityReply reported;
    if (!stub->GetCapacity(&context, {}, &reported).ok() || !reported.has_room_bytes()) continue;
    capacity->second.free_bytes = reported.room_bytes();
    capacity->second.capacity_bytes = reported.capacity_bytes();
  }
}

void CapacityReader::QueryPresent(HolderCapacities& capacities) const {
  const Instant end = std::min(deadline_, clock_.Now() + kCapacityTimeout);
  for (const Member& holder : holders_) {
    const auto capacity = capacities.find(holder.id.name);
    if (capacity == capacities.end()) continue;
    const auto stub = ConnectHolder(holder);
    v1::ListChunksRequest request;
    request.set_count_max(kPageChunks);
    v1::ListChunksReply page;
    do {
      grpc::ClientContext context;
      SetDeadline(context, clock_, end, kCapacityTimeout);
      page.Clear();
      if (clock_.Now() >= end || !stub->ListChunks(&context, request, &page).ok()) {
        capacity->second.reports_present = false;
        break;
      }
      for (const v1::ListChunksReply::Chunk& chunk : page.chunks()) {
        const auto id = ChunkId::FromBytes(chunk.id());
        if (id.ok()) capacity->second.present.insert(*id);
        request.set_after(chunk.id());
      }
    } while (page.more());
  }
}

bool AllReportPresent(const HolderCapacities& capacities) {
  return std::all_of(capacities.begin(), capacities.end(),
                     [](const auto& capacity) { return capacity.second.reports_present; });
}

bool FitsIn(const ChunkSource& chunks, const SourcePlacement& placement,
            const HolderCapacities& capacities) {
  std::map<std::string_view, uint64_t> need;
  for (size_t i = 0; i < placement.size(); ++i) {
    const PlannedChunk& chunk = chunks.chunks()[i];
    for (const HolderId& holder : placement[i]) {
      const auto capacity = capacities.find(holder.name);
      if (capacity == capacities.end() || capacity->second.present.contains(chunk.id)) continue;
      uint64_t& sum = need[capacity->first];
      sum += StoreBytesOf(chunks.geometry(), chunk.token_count);
      if (sum > capacity->second.free_bytes) return false;
    }
  }
  return true;
}

absl::Status CapacityError(uint64_t need_bytes, uint32_t replicas,
                           const HolderCapacities& capacities) {
  std::string reported;
  size_t count = 0;
  for (const auto& [name, capacity] : capacities) {
    if (capacity.free_bytes == UINT64_MAX) continue;
    if (++count > kNamedMax) break;
    reported += absl::StrFormat("%s%s has room for %s of %s", reported.empty() ? "" : ", ", name,
                                Mebibytes(capacity.free_bytes), Mebibytes(capacity.capacity_bytes));
  }
  if (count > kNamedMax) reported += ", ...";
  return absl::ResourceExhaustedError(absl::StrFormat(
      "no room for %s of rows%s: %s\n  free some: ckvctl gc, or ckvctl corpus partition "
      "NAME --weights HOLDER=0.5 to move other corpora; or start another holder, or raise "
      "store.capacity",
      Mebibytes(need_bytes), replicas == 1 ? "" : absl::StrFormat(" in %d copies", replicas),
      reported));
}

absl::StatusOr<SourcePlacement> PlaceInCapacity(const ChunkSource& chunks,
                                                std::span<const uint32_t> fresh, size_t corpus_size,
                                                std::span<const HolderId> holders,
                                                uint32_t replicas,
                                                const HolderCapacities& capacities,
                                                std::span<const FailureDomain> domains) {
  CKV_ASSIGN_OR_RETURN(SourcePlacement placement,
                       PlaceNewChunks(chunks, fresh, corpus_size, holders, replicas, domains));
  if (FitsIn(chunks, placement, capacities)) return placement;
  const Dealer dealer(chunks, fresh, holders, capacities, domains);
  // A holder that hangs reports nothing, so it gets chunks only if there is no space elsewhere.
  for (const uint64_t unreported_bytes : {uint64_t{0}, UINT64_MAX}) {
    for (size_t run = std::bit_ceil((fresh.size() + holders.size() - 1) / holders.size()); run >= 1;
         run /= 2) {
      if (auto dealt = dealer.Deal(corpus_size, run, replicas, unreported_bytes))
        return *std::move(dealt);
    }
  }
  if (!AllReportPresent(capacities)) return placement;  // perhaps they are there: the puts find out
  uint64_t need = 0;
  for (const uint32_t i : fresh)
    need += StoreBytesOf(chunks.geometry(), chunks.chunks()[i].token_count);
  return CapacityError(need, replicas, capacities);
}

absl::StatusOr<SourcePlacement> PlaceByCapacity(const ChunkSource& chunks,
                                                std::span<const uint32_t> fresh, size_t corpus_size,
                                                std::span<const Member> holders, uint32_t replicas,
                                                Clock& clock, Instant deadline) {
  std::vector<HolderId> ids;
  std::vector<FailureDomain> domains;
  for (const Member& holder : holders) {
    if (holder.is_draining) continue;
    ids.push_back(holder.id);
    domains.push_back(holder.domain);
  }
  CKV_ASSIGN_OR_RETURN(SourcePlacement placement,
                       PlaceNewChunks(chunks, fresh, corpus_size, ids, replicas, domains));
  const CapacityReader reader(holders, &clock, deadline);
  HolderCapacities capacities;
  std::vector<HolderId> due;
  for (const Member& holder : PlacedOn(holders, placement)) due.push_back(holder.id);
  reader.Read(due, capacities);
  if (FitsIn(chunks, placement, capacities)) return placement;
  reader.Read(ids, capacities);
  reader.QueryPresent(capacities);
  return PlaceInCapacity(chunks, fresh, corpus_size, ids, replicas, capacities, domains);
}

}  // namespace ckv
