// The links of one engine, and which of them serves which chunk.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/holder_link.h"
#include "client/replica_choice.h"
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

  // A corpus, and which links can be asked for each of its chunks.
  struct Route {
    std::shared_ptr<const Corpus> corpus;  // kept, so that its address stays its own
    std::vector<HolderLink*> links;        // distinct
    std::vector<ReplicaGroup> groups;
    std::vector<uint32_t> group_of_chunk;  // kNoLink where a chunk has no tokens
    std::vector<uint32_t> handles;         // of each chunk
    std::vector<uint64_t> generations;     // of its link, when the handle was resolved; 0: never
    uint64_t last_use = 0;
    bool replicated = false;  // some group has a choice
    // Of the choices made for routes and for fetches.
    std::array<ReplicaRanking, kPrimitiveCount> rankings;
    Primitive primitive = Primitive::kRoute;  // of the call in progress: kRoute or kFetch

    // The link chosen for a chunk in the call in progress, an ordinal in `links`; kNoLink: the
    // chunk has no tokens, and nobody is asked.
    uint32_t LinkOf(uint32_t chunk) const {
      const uint32_t group = group_of_chunk[chunk];
      return group == kNoLink ? kNoLink : groups[group].Chosen(primitive);
    }
  };
  static constexpr uint32_t kNoLink = 0xffffffff;

  // A call begins, of one attempt or several: nobody failed it yet.
  void BeginCall();

  // Begins an attempt of a call over the corpus, whose groups' replicas are chosen for `work`
  // (client/replica_choice.h). Valid until the next call. Closes a link that has been idle for
  // kLinkIdleMax and is not of this corpus: one a call, since each costs a round trip.
  //   ResourceExhausted   too many holders.
  //   NotFound            a chunk that nobody holds.
  absl::StatusOr<Route*> RouteOf(const std::shared_ptr<const Corpus>& corpus,
                                 const ReplicaWork& work = {});

  // For an engine that nobody uses: closes one link that has been idle for kLinkIdleMax. Returns
  // when to look again: at once, when the next link will have been idle for so long, or never,
  // where no link is up.
  Instant CloseOneIdle(Instant now);

  // The link of `chunk`, which has tokens; it is asked in this call.
  HolderLink& Ask(Route& route, uint32_t chunk);

  // HolderLink::EnsureUp of a link of the last RouteOf; where every group that it is asked for has
  // another to ask, it gets half the time that is left. A holder that has no session left gets back
  // the least recently used one that this engine has there, and is asked again for half a second.
  absl::Status EnsureUp(HolderLink& link, Instant deadline);

  // The handle of `chunk`, resolved now if it is not known; its link must be up. Resolves the rest
  // of the corpus on that holder along with it.
  //   NotFound            the holder does not have it.
  //   FailedPrecondition  what it has is not what the directory says.
  //   Aborted             as HolderLink::Resolve.
  absl::StatusOr<uint32_t> HandleOf(Route& route, uint32_t chunk, Instant deadline);

  // "holder h0 (127.0.0.1:7401): " before the message, and what follows from the code: a holder
  // that went away is looked up again, a session that means nothing to it is dropped. FailOver
  // knows then whose failure it was.
  absl::Status Fail(HolderLink& link, const absl::Status& status);
  // The call ended while the holder still had to answer.
  void NoteSilent(HolderLink& link);

  // After an attempt of a call that failed with `status`: the holder that failed it is avoided from
  // now on, and by this call's next attempts even if it answers others meanwhile, or asked to be
  // asked again soon. Returns whether all it was asked for can be asked of others who did not fail
  // this call, so that another attempt is worth making: at most one a holder.
  bool FailOver(const absl::Status& status);

  // While it lives, the groups that `peer` is in choose it.
  class Forced {
   public:
    Forced(LinkTable* table, const HolderPeer* peer) : table_(table) { table_->forced_ = peer; }
    ~Forced() { table_->forced_ = nullptr; }
    Forced(const Forced&) = delete;
    Forced& operator=(const Forced&) = delete;

   private:
    LinkTable* const table_;
  };

 private:
  absl::StatusOr<HolderLink*> LinkTo(const HolderId& holder, const Corpus& corpus);
  absl::StatusOr<Route*> FindRoute(const std::shared_ptr<const Corpus>& corpus);
  absl::Status Fill(Route& route);
  absl::StatusOr<std::vector<uint32_t>> LinksOf(Route& route, const ChunkPlacement& chunk);
  absl::Status MakeUp(HolderLink& link, Instant deadline);
  void Choose(Route& route, const ReplicaWork& work);
  // Whether another than `peer`, of whom `may_ask` holds, is in all groups that it was asked for.
  bool OthersCanBeAsked(const HolderPeer& peer,
                        absl::FunctionRef<bool(const HolderPeer&)> may_ask) const;
  void CloseIdle(const Route& route);
  Instant CloseOneIdleBut(Instant now, std::span<HolderLink* const> used);

  const LinkOptions* const options_;
  PeerTable* const peers_;
  std::vector<std::unique_ptr<HolderLink>> links_;
  std::vector<std::unique_ptr<Route>> routes_;
  uint64_t use_count_ = 0;
  Instant now_;             // of the last RouteOf: one look at the clock a call
  Instant next_idle_look_;  // no link has been idle for kLinkIdleMax before
  // Of the call in progress.
  Route* route_ = nullptr;
  HolderPeer* failed_ = nullptr;
  std::vector<const HolderPeer*> tried_;  // and in vain, by its earlier attempts
  const HolderPeer* forced_ = nullptr;
  ReplicaChooser chooser_;
};

}  // namespace ckv
