// Checks messages and converts them into calls. UsesOf finds the chunks that a request names,
// CheckAttendShape compares its sizes, IndicesOf its lists; all of it before memory is allocated.
// AnswerBuffers gives the answer memory in the reply itself, or converts to bf16 at the end
// (Finish). The last functions are deadlines and retry hints.

#include "server/rpc/attend_request.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_format.h"
#include "attention/bf16.h"
#include "client/grpc/channel_stub.h"
#include "client/grpc/grpc_status.h"
#include "client/holders/retry.h"
#include "proto/base/status.h"
#include "proto/convert.h"

namespace ckv {
namespace {

// The bytes that gRPC's clients accept in one message by default.
constexpr uint64_t kReplyBytesMaxDefault = 4u << 20;
// Bytes for what a message contains in addition to o, m and l. Their lengths and the other fields
// of AttendReply and AttendStreamReply are below 128 bytes.
constexpr uint64_t kReplySlackBytes = 256;
constexpr Duration kRequestTimeoutMax = std::chrono::minutes(10);

bool AnswersBf16(const v1::AttendRequest& request) {
  return request.answer() == v1::PARTIAL_DTYPE_BF16;
}
bool RequestsF32(const v1::AttendRequest& request) {
  return request.q_dtype() == v1::QUERY_DTYPE_F32;
}

}  // namespace

absl::StatusOr<ChunkRange> RangeOf(const Corpus& corpus, uint32_t begin, uint32_t end) {
  const auto count = static_cast<uint32_t>(corpus.chunks.size());
  const ChunkRange range{begin, end == 0 ? count : end};
  if (range.begin < range.end && range.end <= count) return range;
  return absl::InvalidArgumentError(absl::StrFormat("chunks [%d, %d) of corpus '%s', which has %d",
                                                    begin, range.end, corpus.name, count));
}

absl::StatusOr<std::vector<ChunkUse>> UsesOf(const v1::AttendRequest& request,
                                             const std::shared_ptr<const Corpus>& corpus,
                                             OrdinalIndices& indices) {
  std::vector<ChunkUse> uses;
  if (request.chunks().empty()) {
    CKV_ASSIGN_OR_RETURN(const ChunkRange range,
                         RangeOf(*corpus, request.chunk_begin(), request.chunk_end()));
    // No uses mean all chunks. So the call does not grow with the corpus.
    if (range.begin == 0 && range.end == corpus->chunks.size()) return uses;
    for (uint32_t i = range.begin; i < range.end; ++i) uses.push_back({i, 0});
    return uses;
  }
  uses.reserve(request.chunks_size());
  // The call itself refuses a chunk that is named twice.
  const std::shared_ptr<const OrdinalIndex> index = indices.For(corpus);
  for (const v1::ChunkRef& chunk : request.chunks()) {
    CKV_ASSIGN_OR_RETURN(const ChunkId id, ChunkId::FromBytes(chunk.id()));
    const std::optional<uint32_t> ordinal = index->Find(id);
    if (!ordinal) {
      return absl::NotFoundError(
          absl::StrFormat("chunk %s is not of corpus '%s'", id.ToHex(), corpus->name));
    }
    uses.push_back({*ordinal, chunk.offset()});
  }
  return uses;
}

absl::Status CheckAttendShape(const v1::AttendRequest& request, const Geometry& geometry) {
  const uint64_t rows = request.row_count();
  if (rows > kAttendRowCountMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d query rows, limit %d", rows, kAttendRowCountMax));
  }
  if (request.q_dtype() > v1::QUERY_DTYPE_F32 || request.q_dtype() < 0)
    return absl::InvalidArgumentError("q_dtype: unknown");
  const bool f32 = RequestsF32(request);
  const uint64_t q_bytes = rows * geometry.d_qk * (f32 ? sizeof(float) : sizeof(uint16_t));
  if (request.q().size() != q_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("q has %d bytes; %d rows of %d %s values are %d", request.q().size(), rows,
                        geometry.d_qk, f32 ? "f32" : "bf16", q_bytes));
  }
  const uint64_t reply_bytes_max =
      std::min(request.has_reply_bytes_max() ? request.reply_bytes_max() : kReplyBytesMaxDefault,
               uint64_t{kMessageBytesMax});
  const uint64_t row_bytes = geometry.partial_row_bytes(!AnswersBf16(request));
  const uint64_t usable_bytes = reply_bytes_max - std::min(reply_bytes_max, kReplySlackBytes);
  if (rows * row_bytes <= usable_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "row_count: the answer to %d rows has %d bytes, and reply_bytes_max is %d: %d rows fit; send "
      "fewer rows a message, or raise the client's max_receive_message_length and name it in "
      "reply_bytes_max (at most %d)",
      rows, rows * row_bytes, reply_bytes_max, usable_bytes / row_bytes, kMessageBytesMax));
}

absl::StatusOr<std::vector<std::vector<int32_t>>> IndicesOf(
    const v1::FetchSelectionRequest& request, const Geometry& geometry) {
  const auto layers = static_cast<uint32_t>(request.layers_size());
  if (layers == 0 || layers > geometry.layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("layers: %d lists of indices, 1 to %d", layers, geometry.layers));
  }
  std::vector<std::vector<int32_t>> lists;
  uint64_t left = kSelectionIndexCountMax;
  for (const v1::LayerIndices& layer : request.layers()) {
    auto indices = Int32sFromBytes(layer.indices(), left);
    if (!indices.ok()) return Annotate(indices.status(), "layers");
    left -= indices->size();
    lists.push_back(*std::move(indices));
  }
  return lists;
}

absl::StatusOr<PartialDtype> DtypeOf(v1::PartialDtype dtype) {
  switch (dtype) {
    case v1::PARTIAL_DTYPE_UNSPECIFIED:
    case v1::PARTIAL_DTYPE_BF16:
      return PartialDtype::kBf16;
    case v1::PARTIAL_DTYPE_F32:
      return PartialDtype::kF32;
    default:
      return absl::InvalidArgumentError("wire: unknown");
  }
}

absl::StatusOr<Precision> PrecisionOf(v1::Precision precision) {
  switch (precision) {
    case v1::PRECISION_UNSPECIFIED:
      return Precision::kDefault;
    case v1::PRECISION_EXACT:
      return Precision::kExact;
    case v1::PRECISION_WIRE:
      return Precision::kWire;
    case v1::PRECISION_FAST:
      return Precision::kFast;
    default:
      return absl::InvalidArgumentError("precision: unknown");
  }
}

PartialView AnswerBuffers::Make(const v1::AttendRequest& request, const Geometry& geometry,
                                v1::AttendReply& reply) {
  const size_t rows = request.row_count();
  const size_t values = rows * geometry.d_v;
  float* o = nullptr;
  if (AnswersBf16(request)) {
    o_.resize(values);
    o = o_.data();
  } else {
    reply.mutable_o()->resize(values * sizeof(float));
    o = reinterpret_cast<float*>(reply.mutable_o()->data());
  }
  reply.mutable_m()->resize(rows * sizeof(float));
  reply.mutable_l()->resize(rows * sizeof(float));
  return {o, reinterpret_cast<float*>(reply.mutable_m()->data()),
          reinterpret_cast<float*>(reply.mutable_l()->data()), PartialDtype::kF32};
}

void AnswerBuffers::Finish(const v1::AttendRequest& request, const AttendReport& report,
                           v1::AttendReply& reply) {
  if (AnswersBf16(request)) {
    reply.mutable_o()->resize(o_.size() * sizeof(uint16_t));
    Bf16FromFloats(o_.data(), reinterpret_cast<uint16_t*>(reply.mutable_o()->data()), o_.size());
  }
  reply.set_tag(request.tag());
  reply.set_row_count(request.row_count());
  reply.set_precision(static_cast<v1::Precision>(report.precision));  // the numbers are the same
  reply.set_holder_count(report.holder_count);
  reply.set_bytes_sent(report.bytes_sent);
  reply.set_bytes_received(report.bytes_received);
  reply.set_elapsed_ns(static_cast<uint64_t>(report.elapsed.count()));
  reply.set_failed_attempt_count(report.failed_attempt_count);
  reply.set_lost_ns(static_cast<uint64_t>(report.lost.count()));
  reply.set_compute_ns_max(report.compute_ns_max);
  reply.set_approximate(report.approximate);
  reply.set_routed_pairs(report.routed_pairs);
  reply.set_cached_pairs(report.cached_pairs);
  reply.set_prefetched_bytes(report.prefetched_bytes);
}

uint32_t RetryAfterUs(const absl::Status& status) {
  const std::optional<Duration> after = RetryAfterOf(status);
  if (!after) return 0;
  return static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(*after).count());
}

absl::Status WithTimeGiven(const absl::Status& status, Duration given) {
  if (!absl::IsDeadlineExceeded(status)) return status;
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(given).count();
  return Annotate(status, absl::StrFormat("the call had %d ms, the sooner of timeout_ms and gRPC's "
                                          "deadline",
                                          milliseconds));
}

Instant RequestDeadline(const grpc::ServerContextBase& context, const Clock& clock,
                        uint32_t timeout_ms, Duration default_timeout) {
  const Duration timeout =
      timeout_ms == 0 ? default_timeout : std::chrono::milliseconds(timeout_ms);
  return DeadlineOf(context, clock, std::min(timeout, kRequestTimeoutMax));
}

}  // namespace ckv
