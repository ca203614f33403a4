// Reads rows of one request from disk. Start and Finish run on the dispatcher's thread, Read on the
// side thread:
//   Start   lists the chunks of the request, and starts Read
//   Read    for each chunk: ReadChunk loads it whole; if there is no room, ReadLayer reads the
//           layer of an attend. If only selected rows are needed, ReadSelected takes them from
//           the cache or reads their stripes. Once that read as many bytes as the chunk has, the
//           chunk is loaded
//   Finish  gives the request its rows. No other Start until these were used

#include "server/dispatch/cold_reads.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/base/stripe.h"
#include "transport/wire_attend.h"

namespace ckv {
namespace {

// The most chunks whose selected rows are counted. Requests alternate between fewer chunks at a
// time.
constexpr size_t kShareCountMax = 4096;

}  // namespace

ColdReads::ColdReads(ChunkStore* store, StripeCache* stripes, std::span<std::byte> buffer,
                     const CandidateTable* candidates, absl::AnyInvocable<void()> notify)
    : store_(store),
      cache_(stripes),
      buffer_(buffer),
      candidates_(candidates),
      thread_(std::make_unique<SideThread>(std::move(notify))) {
  attend_.segments.reserve(kSegmentCountMax);
  attend_.pieces.reserve(kPieceCountMax);
  wanted_.reserve(kPieceCountMax);
}

// Lists the chunks that the request's handles refer to. Unknown handles are answered when the
// request has its turn again.
absl::Status ColdReads::ListChunks(const ReadyRequest& ready) {
  wanted_.clear();
  tensor_ = ready.header.layer;
  const auto add = [&](uint32_t handle) -> Wanted* {
    const auto chunk = ready.session->handles.Lookup({handle});
    return chunk ? &wanted_.emplace_back(Wanted{.chunk = *chunk, .indices = {}}) : nullptr;
  };
  switch (ready.header.kind) {
    case WireKind::kAttend:
      CKV_RETURN_IF_ERROR(
          DecodeAttendRequest(ready.header, ready.frame(), ready.session->geometry, attend_));
      // Those that are gone by now are answered at the request's turn.
      if (!chosen_.Find(*candidates_, *ready.session, attend_).ok()) break;
      for (const AttendSegment& segment : attend_.segments) {
        for (uint32_t i = segment.piece_begin; i < segment.piece_end; ++i) {
          const PieceEntry& piece = attend_.pieces[i];
          Wanted* const wanted = add(piece.handle);
          if (wanted == nullptr) continue;
          wanted->layer_is_enough = true;
          wanted->selected = piece.index_begin != kDense;
          if (wanted->selected) wanted->indices = IndicesOf(attend_, segment, piece);
        }
      }
      break;
    case WireKind::kFetch: {
      CKV_ASSIGN_OR_RETURN(const FetchRequest request,
                           DecodeFetchRequest(ready.header, ready.frame()));
      add(request.entry.handle);
      break;
    }
    case WireKind::kMap: {
      CKV_ASSIGN_OR_RETURN(const MapEntry entry, DecodeMapRequest(ready.header, ready.frame()));
      add(entry.handle);
      break;
    }
    case WireKind::kScore:
      CKV_RETURN_IF_ERROR(
          DecodeScoreRequest(ready.header, ready.frame(), ready.session->geometry, score_));
      tensor_ = ready.session->geometry.index_tensor(ready.header.layer);
      for (const ChunkRun& run : score_.runs) {
        for (uint32_t i = 0; i < run.count; ++i) {
          if (Wanted* const wanted = add(run.handle + i)) wanted->layer_is_enough = true;
        }
      }
      break;
    case WireKind::kProbe:
    case WireKind::kCandidates:
      break;
  }
  // All entries of one chunk become one group.
  std::sort(wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) {
    return std::tie(a.chunk.slot, a.chunk.generation) < std::tie(b.chunk.slot, b.chunk.generation);
  });
  return absl::OkStatus();
}

absl::Status ColdReads::Start(const ReadyRequest& ready, HolderLane& lane) {
  role_.ClaimOrAssertHeld();
  CKV_RETURN_IF_ERROR(ListChunks(ready));
  ready_ = ready;
  lane_ = &lane;
  ++lane.busy;
  thread_->Start([this] { Read(); });
  return absl::OkStatus();
}

void ColdReads::Read() {
  // The rows of the last request are gone (idle), so the buffer is free.
  auto rows = buffer_.empty() ? std::make_shared<ColdRows>(ColdRowBytesMax(store_->memory().size()))
                              : std::make_shared<ColdRows>(buffer_);
  status_ = absl::OkStatus();
  hit_count_ = read_count_ = 0;
  for (size_t begin = 0, end = 0; begin < wanted_.size() && status_.ok(); begin = end) {
    const ChunkLocator chunk = wanted_[begin].chunk;
    while (end < wanted_.size() && wanted_[end].chunk.slot == chunk.slot &&
           wanted_[end].chunk.generation == chunk.generation) {
      ++end;
    }
    status_ = ReadChunk(Group(wanted_).subspan(begin, end - begin), *rows);
    // Dropped meanwhile: the request gets this answer when it has its turn.
    if (absl::IsNotFound(status_)) status_ = absl::OkStatus();
  }
  if (absl::IsResourceExhausted(status_)) {
    status_ = absl::ResourceExhaustedError(absl::StrFormat(
        "the request's %d chunks are on disk and do not fit in store.capacity together, with "
        "what others read: request fewer at once, or raise it (%s)",
        wanted_.size(), std::string(status_.message())));
  }
  if (status_.ok()) ready_->cold_rows = std::move(rows);
}

absl::Status ColdReads::ReadChunk(Group group, ColdRows& rows) {
  const ChunkLocator chunk = group.front().chunk;
  if (std::all_of(group.begin(), group.end(), [](const Wanted& w) { return w.selected; }))
    return ReadSelected(group, rows);
  absl::StatusOr<ChunkPin> pin = store_->Load(chunk);
  if (!pin.ok()) {
    const bool layer_is_read =
        absl::IsResourceExhausted(pin.status()) && group.front().layer_is_enough;
    return layer_is_read ? ReadLayer(chunk, rows) : pin.status();
  }
  rows.Keep(*std::move(pin));
  return absl::OkStatus();
}

absl::Status ColdReads::ReadLayer(ChunkLocator chunk, ColdRows& rows) {
  CKV_ASSIGN_OR_RETURN(const ChunkRows file, store_->OpenRows(chunk));
  stripes_.resize(StripeCount(file.info().token_count()));
  std::iota(stripes_.begin(), stripes_.end(), 0u);
  return rows.Add(chunk, file, tensor_, stripes_);
}

absl::Status ColdReads::ReadSelected(Group group, ColdRows& rows) {
  const ChunkLocator chunk = group.front().chunk;
  if (auto pin = store_->table().Pin(chunk); pin.ok()) {
    rows.Keep(*std::move(pin));
    return absl::OkStatus();
  }
  if (FindSelected(group, rows)) return absl::OkStatus();
  CKV_ASSIGN_OR_RETURN(const ChunkRows file, store_->OpenRows(chunk));
  stripes_.clear();
  for (const Wanted& wanted : group)
    AddSelectedStripes(wanted.indices, file.info().token_count(), &stripes_);
  const size_t missing = cache_->Missing(chunk, ready_->header.layer, stripes_);
  // The last stripe may be shorter; a layer is not.
  const ChunkLayout layout = file.layout();
  const uint32_t layer = ready_->header.layer;
  const uint64_t bytes =
      std::min<uint64_t>(missing * kStripeTokens * layout.row_bytes(layer), layout.bytes(layer));
  if (!TakeShare(chunk, bytes, layout.total_bytes())) {
    absl::StatusOr<ChunkPin> pin = store_->Load(chunk);
    if (pin.ok()) {
      rows.Keep(*std::move(pin));
      return absl::OkStatus();
    }
    if (!absl::IsResourceExhausted(pin.status())) return pin.status();
  }
  return ReadStripes(chunk, file, rows);
}

// Returns true if all selected rows are in the cache. Then nothing is read, not even the file's
// header.
bool ColdReads::FindSelected(Group group, ColdRows& rows) {
  std::vector<StripeCache::Hold> holds;
  for (const Wanted& wanted : group) {
    holds.push_back(cache_->Find(wanted.chunk, ready_->header.layer, wanted.indices));
    if (!holds.back().held()) return false;
  }
  for (StripeCache::Hold& hold : holds) {
    hit_count_ += hold.stripe_count();
    rows.Keep(group.front().chunk, std::move(hold));
  }
  return true;
}

absl::Status ColdReads::ReadStripes(ChunkLocator chunk, const ChunkRows& file, ColdRows& rows) {
  const uint32_t layer = ready_->header.layer;
  const size_t missing = cache_->Missing(chunk, layer, stripes_);
  if (!stripes_.empty()) {
    auto hold = cache_->Fill(chunk, file, layer, stripes_);
    if (hold.ok()) {
      hit_count_ += stripes_.size() - missing;
      read_count_ += missing;
      rows.Keep(chunk, *std::move(hold));
      return absl::OkStatus();
    }
    if (!absl::IsResourceExhausted(hold.status())) return hold.status();
  }
  const absl::Status added = rows.Add(chunk, file, layer, stripes_);
  if (absl::IsResourceExhausted(added)) {
    absl::StatusOr<ChunkPin> pin = store_->Load(chunk);
    if (!pin.ok()) return absl::IsResourceExhausted(pin.status()) ? added : pin.status();
    rows.Keep(*std::move(pin));
    return absl::OkStatus();
  }
  CKV_RETURN_IF_ERROR(added);
  read_count_ += stripes_.size();
  ShareOf(chunk) += (stripes_.size() - missing) * kStripeTokens * file.geometry().row_bytes();
  return absl::OkStatus();
}

uint64_t& ColdReads::ShareOf(ChunkLocator chunk) {
  if (shares_.size() >= kShareCountMax) shares_.clear();
  Share& share = shares_[chunk.slot];
  if (share.generation != chunk.generation) share = {.generation = chunk.generation};
  return share.bytes;
}

bool ColdReads::TakeShare(ChunkLocator chunk, uint64_t bytes, uint64_t chunk_bytes) {
  uint64_t& share = ShareOf(chunk);
  share += bytes;
  if (share <= chunk_bytes) return true;
  shares_.erase(chunk.slot);  // if the chunk becomes cold again, the count restarts
  return false;
}

ColdReads::Done ColdReads::Finish() {
  role_.ClaimOrAssertHeld();
  thread_->Collect();
  --lane_->busy;
  Done done = {*std::move(ready_), std::exchange(lane_, nullptr), status_, hit_count_, read_count_};
  ready_.reset();
  held_ = done.ready.cold_rows;
  return done;
}

void ColdReads::End() {
  role_.ClaimOrAssertHeld();
  thread_.reset();
  if (lane_ != nullptr) --lane_->busy;
  lane_ = nullptr;
  ready_.reset();
}

}  // namespace ckv
