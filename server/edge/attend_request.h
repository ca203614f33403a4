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
//   InvalidArgument     no; says what would fit.
absl::Status CheckAttendShape(const v1::AttendRequest& request, const Geometry& geometry);

// The selection's indices, of which there are as many as its groups and k say. Never without
// memory, so that an empty list is present all the same: everything is empty then.
//   InvalidArgument     there are not.
absl::StatusOr<std::vector<int32_t>> IndicesOf(const v1::AttendRequest& request);

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

// The queries, selection, wire type and grade of a request. Borrowed from it and its indices.
struct AttendParts {
  QueryView q;
  Selection selection;
  PartialDtype wire = PartialDtype::kBf16;
  Grade grade = Grade::kDefault;
};
// Fills `indices` if the request selects.
//   InvalidArgument     as CheckAttendShape, IndicesOf, DtypeOf and GradeOf.
absl::StatusOr<AttendParts> PartsOf(const v1::AttendRequest& request, const Geometry& geometry,
                                    std::vector<int32_t>& indices);

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
