// Checks what a message of RequesterService asks before anything is sized by it, and shapes its
// answer.

#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/grade.h"
#include "ckv/v1/requester.pb.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "proto/base/status.h"
#include "proto/corpus.h"
#include "proto/geometry.h"
#include "server/edge/ordinal_index.h"

namespace ckv {

struct ChunkRange {
  uint32_t begin = 0;
  uint32_t end = 0;
};

// Chunks [begin, end) of the corpus; an end of 0 is the corpus' end.
//   InvalidArgument     empty, or beyond the corpus.
absl::StatusOr<ChunkRange> RangeOf(const Corpus& corpus, uint32_t begin, uint32_t end);

// The chunks of a request that has a list of ordinals, which counts if it has any, and a range.
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

// The chunks of a request as ordinals of `corpus`; none if they are all of it.
// `indices` has the corpus's, or makes it if the request names chunks by id.
//   InvalidArgument     a malformed id; the range, as RangeOf.
//   NotFound            a chunk that is not of the corpus.
absl::StatusOr<std::vector<ChunkUse>> UsesOf(const v1::AttendRequest& request,
                                             const std::shared_ptr<const Corpus>& corpus,
                                             OrdinalIndices& indices);

// Whether the query rows are as many bytes as they should be, and the answer fits reply_bytes_max.
//   InvalidArgument     no; says what would fit. Or their dtype is unknown.
absl::Status CheckAttendShape(const v1::AttendRequest& request, const Geometry& geometry);

// The index lists of a fetch, layer by layer.
//   InvalidArgument     more layers than the geometry has, more than kSelectionIndexCountMax
//                       indices, or bytes that are not whole indices.
absl::StatusOr<std::vector<std::vector<int32_t>>> IndicesOf(
    const v1::FetchSelectionRequest& request, const Geometry& geometry);

// The type of a request's partials on the wire; bf16 if it does not say.
//   InvalidArgument     unknown.
absl::StatusOr<PartialDtype> DtypeOf(v1::PartialDtype dtype);

// The grade of a request.
//   InvalidArgument     unknown.
absl::StatusOr<Grade> GradeOf(v1::Grade grade);

// Memory that a request's parts take beside the request. It may be used again for another.
struct AttendMemory {
  std::vector<uint16_t> q;  // rows that came as f32
  std::vector<int32_t> indices;
  std::vector<uint32_t> row_limits;
};
// The bytes of AttendMemory that a request will take, by what it says of itself. Nothing of it is
// checked yet.
uint64_t AttendMemoryBytes(const v1::AttendRequest& request);

// The queries, selection, limits, wire type and grade of a request. Borrowed from it and its
// memory.
struct AttendParts {
  QueryView q;
  Selection selection;
  RowLimits row_limits;
  PartialDtype wire = PartialDtype::kBf16;
  Grade grade = Grade::kDefault;
};
// Fills `memory` with what the parts cannot borrow from the request.
//   InvalidArgument     as CheckAttendShape, DtypeOf and GradeOf. Or a selection or row limits have
//                       another size than groups and k say. Or a run is malformed, or all runs
//                       have more than kSelectionIndexCountMax rows.
absl::StatusOr<AttendParts> PartsOf(const v1::AttendRequest& request, const Geometry& geometry,
                                    AttendMemory& memory);

// Memory for the f32 answer to one request: in its reply, or beside it if it asks for bf16.
class AnswerRoom {
 public:
  // May be called again, and returns the same place then. The request's `answer` is known.
  PartialView Make(const v1::AttendRequest& request, const Geometry& geometry,
                   v1::AttendReply& reply);
  // Call once the answer is there. Fills the rest of the reply.
  void Finish(const v1::AttendRequest& request, const AttendReport& report, v1::AttendReply& reply);

 private:
  std::vector<float> o_;
};

// The hint of an overloaded holder, or 0 if there is none.
uint32_t RetryAfterUs(const absl::Status& status);

// Says how long a call had whose deadline passed.
absl::Status WithTimeGiven(const absl::Status& status, Duration given);

// The sooner of the caller's deadline and `timeout_ms`; 0 means `default_timeout`. At most ten
// minutes from now.
Instant RequestDeadline(const grpc::ServerContextBase& context, const Clock& clock,
                        uint32_t timeout_ms, Duration default_timeout);

}  // namespace ckv
