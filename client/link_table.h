// The links of one engine, and which of them serves which chunk.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/holder_link.h"
#include "proto/corpus.h"

namespace ckv {

// The links of one engine, and which of them serves which chunk of which corpus: so that the hot
// path looks up pointers, not names. Belongs to one thread at a time.
class LinkTable {
 public:
  static constexpr size_t kLinkCountMax = 1024;
  static constexpr size_t kRouteCountMax = 64;  // corpora

  LinkTable(const LinkOptions* options, PeerTable* peers) : options_(options), peers_(peers) {}

  // A corpus, and the primary's link of each of its chunks.
  struct Route {
    std::shared_ptr<const Corpus> corpus;  // kept, so that its address stays its own
    std::vector<HolderLink*> links;        // distinct
    std::vector<uint32_t> link_of_chunk;   // kNoLink where a chunk has no tokens
    std::vector<uint32_t> handles;         // of each chunk
    std::vector<uint64_t> generations;     // of its link, when the handle was resolved; 0: never
    uint64_t last_use = 0;
  };
  static constexpr uint32_t kNoLink = 0xffffffff;

  // Valid until the next call.
  //   ResourceExhausted   too many holders.
  //   NotFound            a chunk that nobody holds.
  absl::StatusOr<Route*> RouteOf(const std::shared_ptr<const Corpus>& corpus);

  // The handle of `chunk`, resolved now if it is not known; its link must be up. Resolves the rest
  // of the corpus on that holder along with it.
  //   NotFound            the holder does not have it.
  //   FailedPrecondition  what it has is not what the directory says.
  absl::StatusOr<uint32_t> HandleOf(Route& route, uint32_t chunk, Instant deadline);

 private:
  absl::StatusOr<HolderLink*> LinkTo(const HolderId& holder, const Corpus& corpus);
  absl::Status Fill(Route& route);

  const LinkOptions* const options_;
  PeerTable* const peers_;
  std::vector<std::unique_ptr<HolderLink>> links_;
  std::vector<std::unique_ptr<Route>> routes_;
  uint64_t use_count_ = 0;
};

// "holder h0 (127.0.0.1:7401): " before the message, and what follows from the code: a holder that
// went away is looked up again, a session that means nothing to it is dropped.
absl::Status HolderError(HolderLink& link, const absl::Status& status);

}  // namespace ckv
