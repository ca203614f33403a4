// Finds the corpus and the chunks that a request of RequesterService names.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ckv/v1/requester.pb.h"
#include "client/requester.h"
#include "proto/base/clock.h"
#include "proto/corpus.h"
#include "server/rpc/ordinal_index.h"

namespace ckv {

struct RequestChunks {
  std::shared_ptr<const Corpus> corpus;
  std::vector<ChunkUse> uses;  // none means all chunks of the corpus
};

// Thread-safe.
class RequestCorpora {
 public:
  // `requester` must outlive this object.
  explicit RequestCorpora(Requester* requester) : requester_(*requester) {}

  // Returns the corpus of this name. If the cached snapshot is not at `version`, queries the
  // directory once. A `version` of 0 accepts any.
  //   FailedPrecondition  the corpus is at another version.
  absl::StatusOr<std::shared_ptr<const Corpus>> Resolve(const std::string& name,
                                                        const std::string& tenant, uint64_t version,
                                                        Instant deadline);

  // Returns the chunks that a request names, either as part of a named corpus or by id only. If the
  // cached corpus lacks one, queries the directory once.
  //   InvalidArgument     the request names neither, or something in it is malformed.
  //   NotFound            the corpus or a chunk does not exist.
  //   FailedPrecondition  as Resolve, or the corpus has another geometry than the request.
  absl::StatusOr<RequestChunks> ChunksOf(const v1::AttendRequest& request, Instant deadline);

 private:
  absl::StatusOr<std::shared_ptr<const Corpus>> CorpusOf(const v1::AttendRequest& request,
                                                         Instant deadline);

  Requester& requester_;
  OrdinalIndices ordinals_;
};

}  // namespace ckv
