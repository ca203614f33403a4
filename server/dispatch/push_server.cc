// Serves one fetch at a time, on the dispatcher's thread. Answer checks the request and pins the
// chunk. Push then checks the range and the size, and sends the rows:
//   whole rows         the fabric gathers them from the store. The pin is in sending_ until Reap
//                      finds that the fabric is done
//   many tiny tensors  copied into the reply slot, because a fabric does not gather so many ranges
//   selected, slices   PushGathered copies them into the reply slot
// Rows have a checksum unless the fabric shares memory.

#include "server/dispatch/push_server.h"

#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "proto/base/stripe.h"
#include "transport/body_checksum.h"
#include "transport/wire.h"

namespace ckv {
namespace {

using Run = std::span<const std::byte>;

absl::Status CheckRange(const FetchEntry& entry, const Chunk& chunk) {
  const ChunkLayout& layout = chunk.layout();
  const uint32_t tensors = layout.tensor_count(), begin = entry.tensor_begin;
  const uint32_t tokens = chunk.info().token_count();
  if (begin >= tensors || entry.tensor_count > tensors - begin) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tensors %d + %d, chunk has %d", begin, entry.tensor_count, tensors));
  }
  const uint32_t row_bytes = layout.row_bytes(begin);
  if (entry.tensor_count > 0 && layout.row_bytes(begin + entry.tensor_count - 1) != row_bytes)
    return absl::InvalidArgumentError("tensors whose rows have two sizes");
  // There may be more chosen rows than tokens, because one row may be chosen twice.
  if (entry.index_count == 0 &&
      (entry.token_begin > tokens || entry.token_count > tokens - entry.token_begin)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "tokens %d + %d, chunk has %d", entry.token_begin, entry.token_count, tokens));
  }
  if (entry.column_begin + entry.column_bytes > row_bytes) {
    return absl::InvalidArgumentError(absl::StrFormat("bytes %d + %d of each row, rows have %d",
                                                      entry.column_begin, entry.column_bytes,
                                                      row_bytes));
  }
  return absl::OkStatus();
}

uint64_t RowBytesOf(const Chunk& chunk, const FetchEntry& entry) {
  return chunk.layout().row_bytes(entry.tensor_begin);
}

Run RunOf(const Chunk& chunk, const FetchEntry& entry, uint32_t i) {
  const uint64_t row_bytes = RowBytesOf(chunk, entry);
  return chunk.tensor(entry.tensor_begin + i)
      .subspan(entry.token_begin * row_bytes, entry.token_count * row_bytes);
}

// Returns the checksum of the rows. For whole stripes, it is made of the store's checksums.
uint32_t Checksum(const Chunk& chunk, const FetchEntry& entry) {
  const uint64_t row_bytes = RowBytesOf(chunk, entry);
  return BodyChecksum(entry, [&](const StripePart& part) {
    const uint32_t stripe = part.token_begin / kStripeTokens;
    if (part.token_begin % kStripeTokens == 0 &&
        (part.token_count == kStripeTokens ||
         part.token_begin + part.token_count == chunk.info().token_count())) {
      return chunk.stripe_checksums(part.tensor)[stripe];
    }
    return StripeChecksum(chunk.tensor(part.tensor)
                              .subspan(part.token_begin * row_bytes, part.token_count * row_bytes));
  });
}

// Puts the rows behind the header, as one run.
Run CopyRuns(const Chunk& chunk, const FetchEntry& entry, std::span<std::byte> out) {
  size_t bytes = 0;
  for (uint32_t i = 0; i < entry.tensor_count; ++i) {
    const Run run = RunOf(chunk, entry, i);
    std::memcpy(out.data() + bytes, run.data(), run.size());
    bytes += run.size();
  }
  return out.first(bytes);
}

// Rows to be gathered are scattered in memory. Each is prefetched while the 8 before it are copied,
// which is about what memory delivers in its latency.
constexpr uint32_t kGatherAheadRows = 8;

// Puts `count` rows' slices behind one another; row(i) is the i-th row's number in the tensor.
void GatherRows(Run tensor, uint64_t row_bytes, const FetchEntry& entry, auto row, std::byte* out) {
  const uint64_t width = entry.sent_row_bytes(row_bytes);
  const std::byte* const slices = tensor.data() + entry.column_begin;
  for (uint32_t i = 0; i < entry.token_count; ++i, out += width) {
    if (entry.token_count - i > kGatherAheadRows) {
      const std::byte* const ahead = slices + row(i + kGatherAheadRows) * row_bytes;
      for (uint64_t c = 0; c < width; c += 64) __builtin_prefetch(ahead + c);
    }
    std::memcpy(out, slices + row(i) * row_bytes, width);
  }
}

}  // namespace

PushServer::PushServer(Clock* clock, const ChunkTable* table, const LeaseGate* lease,
                       ServeCounters* counters)
    : clock_(clock), table_(table), lease_(lease), counters_(counters) {}

absl::StatusOr<bool> PushServer::Answer(const ReadyRequest& ready) {
  role_.ClaimOrAssertHeld();
  const Instant started = clock_->Now();
  counters_->push_wait.AddAlone(started - ready.arrived);
  absl::Status status = CheckTurn(ready, *lease_, started, *counters_);
  if (status.ok()) {
    CKV_ASSIGN_OR_RETURN(const FetchRequest request,
                         DecodeFetchRequest(ready.header, ready.frame()));
    absl::StatusOr<ChunkPin> pin = PinHandle(*table_, *ready.session, request.entry.handle);
    if (absl::IsUnavailable(pin.status())) return false;
    status = pin.ok() ? Push(ready, request, *std::move(pin), started) : pin.status();
  }
  if (!status.ok()) PostError(ready, status, /*retry_after_us=*/0, *counters_);
  return true;
}

absl::Status PushServer::Push(const ReadyRequest& ready, const FetchRequest& request, ChunkPin pin,
                              Instant started) {
  const FetchEntry& entry = request.entry;
  const Chunk& chunk = pin.chunk();
  CKV_RETURN_IF_ERROR(CheckRange(entry, chunk));
  // Below 2^20 tokens x 2^11 B x 2^9 layers: cannot wrap. There are as many chosen rows as one
  // reply carries.
  const uint64_t body_bytes = uint64_t{entry.token_count} *
                              entry.sent_row_bytes(RowBytesOf(chunk, entry)) * entry.tensor_count;
  const uint32_t body_bytes_max = FetchBodyBytesMax(ready.lane->shape().reply_bytes_max);
  if (body_bytes > body_bytes_max) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d bytes of rows, a reply of this lane carries %d: ask for fewer",
                        body_bytes, body_bytes_max));
  }
  ReplyHeader reply = {.kind = WireKind::kFetch,
                       .request_id = ready.header.request_id,
                       .epoch = ready.header.epoch,
                       .body_bytes = static_cast<uint32_t>(body_bytes),
                       .queue_ns = Saturate32((started - ready.arrived).count())};
  if (entry.gathered()) return PushGathered(ready, request, chunk, reply);
  std::array<Run, kGatherRunCountMax> runs;
  size_t run_count = body_bytes == 0 ? 0 : entry.tensor_count;
  const std::span<std::byte> slot = ready.lane->reply(ready.slot);
  // More runs than a fabric gathers are as many tiny tensors: copied.
  const bool copied = run_count > runs.size();
  if (copied) {
    run_count = 1;
    runs[0] = CopyRuns(chunk, entry, slot.subspan(sizeof(ReplyHeader)));
  } else {
    for (uint32_t i = 0; i < run_count; ++i) runs[i] = RunOf(chunk, entry, i);
  }
  const auto body = std::span<const Run>(runs).first(run_count);
  reply.body_checksum = SharesMemory(ready.lane->kind()) ? 0 : Checksum(chunk, entry);
  Bump(counters_->push_count);
  Bump(counters_->push_bytes, body_bytes);
  if (copied || run_count == 0) {
    PostReply(ready, reply, *counters_);
    return absl::OkStatus();
  }
  EncodeHeader(reply, slot);
  // If the lane broke meanwhile, its status reports that, and the dispatcher checks the status.
  if (!ready.lane->PostGather(ready.slot, sizeof(ReplyHeader), body, RegionType::kHost).ok())
    return absl::OkStatus();
  Bump(counters_->bytes_out, sizeof(ReplyHeader) + body_bytes);
  if (ready.lane->gathering(ready.slot)) {
    sending_.push_back({ready.lane, ready.slot, std::move(pin)});
  }
  return absl::OkStatus();
}

// Chosen rows and slices: the reply slot is the staging buffer, and one put carries it.
absl::Status PushServer::PushGathered(const ReadyRequest& ready, const FetchRequest& request,
                                      const Chunk& chunk, ReplyHeader reply) {
  const FetchEntry& entry = request.entry;
  CKV_RETURN_IF_ERROR(TakeIndices(request, chunk));
  const uint64_t row_bytes = RowBytesOf(chunk, entry);
  const std::span<std::byte> body =
      ready.lane->reply(ready.slot).subspan(sizeof(ReplyHeader), reply.body_bytes);
  const uint64_t tensor_bytes = entry.token_count * entry.sent_row_bytes(row_bytes);
  for (uint32_t i = 0; i < entry.tensor_count; ++i) {
    const Run tensor = chunk.tensor(entry.tensor_begin + i);
    std::byte* const out = body.data() + i * tensor_bytes;
    if (indices_.empty()) {
      GatherRows(
          tensor, row_bytes, entry, [&](uint32_t t) { return uint64_t{entry.token_begin} + t; },
          out);
    } else {
      GatherRows(
          tensor, row_bytes, entry, [&](uint32_t t) { return uint64_t{indices_[t]}; }, out);
    }
  }
  if (!SharesMemory(ready.lane->kind()))
    reply.body_checksum = BodyChecksum(entry, entry.sent_row_bytes(row_bytes), body);
  Bump(counters_->push_count);
  Bump(counters_->push_bytes, body.size());
  PostReply(ready, reply, *counters_);
  return absl::OkStatus();
}

// The indices as they are now: on shm the peer can still change those in the slot.
absl::Status PushServer::TakeIndices(const FetchRequest& request, const Chunk& chunk) {
  indices_.resize(request.indices.size());
  if (!indices_.empty())
    std::memcpy(indices_.data(), request.indices.data(), request.indices.size_bytes());
  const uint32_t token_count = chunk.info().token_count();
  for (size_t i = 0; i < indices_.size(); ++i) {
    // Negative ones are beyond any chunk.
    if (indices_[i] >= token_count) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "index %d is %d, chunk has %d rows", i, static_cast<int32_t>(indices_[i]), token_count));
    }
  }
  return absl::OkStatus();
}

void PushServer::Reap() {
  role_.ClaimOrAssertHeld();
  std::erase_if(sending_,
                [](const Sending& sending) { return !sending.lane->gathering(sending.slot); });
}

void PushServer::Forget(const ServeLane* lane) {
  role_.ClaimOrAssertHeld();
  std::erase_if(sending_, [lane](const Sending& sending) { return sending.lane == lane; });
}

}  // namespace ckv
