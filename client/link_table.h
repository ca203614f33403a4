// The links of one engine, and which of them serves which chunk.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
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
  // A link that nobody used for so long is closed: its lane's memory is the holder's, too.
  static constexpr Duration kLinkIdleMax = std::chrono::seconds(60);

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

  // Valid until the next call. Closes a link that has been idle for kLinkIdleMax and is not of this
  // corpus: one a call, since each costs a round trip.
  //   ResourceExhausted   too many holders.
  //   NotFound            a chunk that nobody holds.
  absl::StatusOr<Route*> RouteOf(const std::shared_ptr<const Corpus>& corpus);

  // For an engine that nobody uses: closes one link that has been idle for kLinkIdleMax. Returns
  // when to look again: at once, when the next link will have been idle for so long, or never,
  // where no link is up.
  Instant CloseOneIdle(Instant now);

  // HolderLink::EnsureUp of a link of the last RouteOf. A holder that has no session left gets back
  // the least recently used one that this engine has there, and is asked again for half a second.
  absl::Status EnsureUp(HolderLink& link, Instant deadline);

  // The handle of `chunk`, resolved now if it is not known; its link must be up. Resolves the rest
  // of the corpus on that holder along with it.
  //   NotFound            the holder does not have it.
  //   FailedPrecondition  what it has is not what the directory says.
  //   Aborted             as HolderLink::Resolve.
  absl::StatusOr<uint32_t> HandleOf(Route& route, uint32_t chunk, Instant deadline);

 private:
  absl::StatusOr<HolderLink*> LinkTo(const HolderId& holder, const Corpus& corpus);
  absl::Status Fill(Route& route);
  void CloseIdle(const Route& route);
  Instant CloseOneIdleBut(Instant now, std::span<HolderLink* const> used);

  const LinkOptions* const options_;
  PeerTable* const peers_;
  std::vector<std::unique_ptr<HolderLink>> links_;
  std::vector<std::unique_ptr<Route>> routes_;
  uint64_t use_count_ = 0;
  Instant now_;             // of the last RouteOf: one look at the clock a call
  Instant next_idle_look_;  // no link has been idle for kLinkIdleMax before
};

// "holder h0 (127.0.0.1:7401): " before the message, and what follows from the code: a holder that
// went away is looked up again, a session that means nothing to it is dropped.
absl::Status HolderError(HolderLink& link, const absl::Status& status);

}  // namespace ckv
