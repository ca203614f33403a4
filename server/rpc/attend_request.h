// Validates RequesterService messages before any memory is sized by their fields, and builds the
// replies.

#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/precision.h"
#include "ckv/v1/requester.pb.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "proto/corpus.h"
#include "proto/geometry.h"
#include "server/rpc/ordinal_index.h"

namespace ckv {

struct ChunkRange {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// Returns chunks [begin, end) of the corpus. An `end` of 0 means the end of the corpus.
//   InvalidArgument     the range is empty or exceeds the corpus.
absl::StatusOr<ChunkRange> RangeOf(const Corpus& corpus, uint32_t begin, uint32_t end);

// Returns the chunks of a request that has a list of ordinals and a range. The list is used unless
// it is empty.
//   InvalidArgument     as RangeOf and ChunksOrAll.
template <typename Request>
absl::StatusOr<std::vector<uint32_t>> ChunksOf(const Request& request, const Corpus& corpus) {
  std::vector<uint32_t> chunks(request.chunks().begin(), request.chunks().end());
  if (!chunks.empty()) return ChunksOrAll(corpus, std::move(chunks));
  CKV_ASSIGN_OR_RETURN(const ChunkRange range,
                       RangeOf(corpus, request.chunk_begin(), request.chunk_end()));
  for (uint32_t chunk = range.begin; chunk < range.end; ++chunk) chunks.push_back(chunk);
  return chunks;
}

// Returns the chunks of a request as ordinals of `corpus`, or none if the request names the whole
// corpus. If the request names chunks by id, takes the corpus' index from `indices`, which makes it
// if needed.
//   InvalidArgument     an id is malformed, or the range is invalid (RangeOf).
//   NotFound            the corpus does not contain a chunk.
absl::StatusOr<std::vector<ChunkUse>> UsesOf(const v1::AttendRequest& request,
                                             const std::shared_ptr<const Corpus>& corpus,
                                             OrdinalIndices& indices);

// Checks that the query rows have the right number of bytes and that the answer fits
// reply_bytes_max.
//   InvalidArgument     they do not, and the message states what would fit; or the dtype of the
//                       query rows is unknown.
absl::Status CheckAttendShape(const v1::AttendRequest& request, const Geometry& geometry);

// Returns the index lists of a fetch, one per layer.
//   InvalidArgument     there are no layers, more layers than the geometry has, more than
//                       kSelectionIndexCountMax indices, or bytes that are not whole indices.
absl::StatusOr<std::vector<std::vector<int32_t>>> IndicesOf(
    const v1::FetchSelectionRequest& request, const Geometry& geometry);

// Returns the type of a request's partials on the wire; bf16 if unspecified.
//   InvalidArgument     unknown.
absl::StatusOr<PartialDtype> DtypeOf(v1::PartialDtype dtype);

// Returns the precision of a request.
//   InvalidArgument     unknown.
absl::StatusOr<Precision> PrecisionOf(v1::Precision precision);

// Memory that a request's parts need in addition to the request. It can be reused for another
// request.
struct AttendMemory {
  std::vector<uint16_t> q;  // query rows that were sent as f32, converted
  std::vector<int32_t> indices;
  std::vector<uint32_t> row_limits;
};
// Returns how many bytes of AttendMemory a request will need, computed from its fields, which need
// not be validated yet.
uint64_t AttendMemoryBytes(const v1::AttendRequest& request);

// The queries, selection, limits, wire type and precision of a request. Borrowed from the request
// and its AttendMemory.
struct AttendParts {
  QueryView q;
  Selection selection;
  RowLimits row_limits;
  PartialDtype wire = PartialDtype::kBf16;
  Precision precision = Precision::kDefault;
};
// Returns the parts. Fills `memory` with the data that they cannot borrow from the request.
//   InvalidArgument     as CheckAttendShape, DtypeOf and PrecisionOf. A selection or row limits do
//   not
//                       fit groups and k. A range of rows is malformed. All ranges together have
//                       more than kSelectionIndexCountMax rows.
absl::StatusOr<AttendParts> PartsOf(const v1::AttendRequest& request, const Geometry& geometry,
                                    AttendMemory& memory);

// The output buffer for one request's f32 answer. The buffer is in the reply, or separate if the
// request wants a bf16 answer.
class AnswerBuffers {
 public:
  // Returns the buffer. May be called again, and then returns the same one. The request's `answer`
  // must be valid.
  PartialView Make(const v1::AttendRequest& request, const Geometry& geometry,
                   v1::AttendReply& reply);
  // Call once the answer is written. Fills the rest of the reply.
  void Finish(const v1::AttendRequest& request, const AttendReport& report, v1::AttendReply& reply);

 private:
  std::vector<float> o_;
};

// Returns the retry hint of an overloaded holder in microseconds, or 0 if there is none.
uint32_t RetryAfterUs(const absl::Status& status);

// Adds to a DeadlineExceeded status how much time the call had. Returns other statuses unchanged.
absl::Status WithTimeGiven(const absl::Status& status, Duration given);

// Returns the earlier of the caller's gRPC deadline and `timeout_ms` from now; 0 means
// `default_timeout`. The result is at most ten minutes from now.
Instant RequestDeadline(const grpc::ServerContextBase& context, const Clock& clock,
                        uint32_t timeout_ms, Duration default_timeout);

}  // namespace ckv
