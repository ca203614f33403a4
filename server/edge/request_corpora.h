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
#include "server/edge/ordinal_index.h"

namespace ckv {

struct RequestChunks {
  std::shared_ptr<const Corpus> corpus;
  std::vector<ChunkUse> uses;  // none if they are all of the corpus
};

// Thread-safe.
class RequestCorpora {
 public:
  // `requester` must outlive it.
  explicit RequestCorpora(Requester* requester) : requester_(*requester) {}

  // Returns the corpus of this name. If the kept one is not at `version`, it asks the directory
  // once.
  //   FailedPrecondition  the corpus is at another version. A `version` of 0 accepts any.
  absl::StatusOr<std::shared_ptr<const Corpus>> Resolve(const std::string& name,
                                                        const std::string& tenant, uint64_t version,
                                                        Instant deadline);

  // Returns the chunks that a request names, of a corpus with a name or by their ids alone. If the
  // kept corpus lacks one, it asks the directory once.
  //   InvalidArgument     it names neither, or not rightly.
  //   NotFound            there is no such corpus or chunk.
  //   FailedPrecondition  also: the geometry is another.
  absl::StatusOr<RequestChunks> ChunksOf(const v1::AttendRequest& request, Instant deadline);

 private:
  absl::StatusOr<std::shared_ptr<const Corpus>> CorpusOf(const v1::AttendRequest& request,
                                                         Instant deadline);

  Requester& requester_;
  OrdinalIndices ordinals_;
};

}  // namespace ckv
