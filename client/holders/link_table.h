// The links of one call context, and which link serves which chunk.

#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/backend.h"
#include "client/holders/chunk_links.h"
#include "client/holders/holder_link.h"
#include "client/holders/replica_choice.h"
#include "proto/corpus.h"
#include "transport/thread_role.h"

namespace ckv {

// Finds the link for each chunk of a corpus, so that the hot path looks up pointers and not names.
// Keeps the links of one call context. Belongs to one thread at a time.
class LinkTable {
 public:
  static constexpr size_t kLinkCountMax = 1024;
  // The most corpora whose links are kept, and the most that one call may use.
  static constexpr size_t kCorpusCountMax = 256;
  static constexpr Duration kOpenMax = SessionOpening::kTimeout;
  // A link unused for this time is closed, because its lane takes memory of the holder too.
  static constexpr Duration kLinkIdleMax = std::chrono::seconds(60);

  // `stream` is the one that the calls use. Its work is in slots of lanes, so a lane that fails is
  // closed once that work is done. May be null.
  LinkTable(const LinkOptions* options, PeerTable* peers, ComputeStream* stream = nullptr)
      : options_(options), peers_(peers), stream_(stream), first_turn_(peers->NextTable()) {
    Claim();
  }

  // Makes the calling thread the table's owner. The caller must synchronize the hand-over. In debug
  // builds a use by another thread ends the process.
  void Claim() { role_.Claim(); }
  void AssertHeld() const { role_.AssertHeld(); }

  using ChunkLinks = ckv::ChunkLinks;
  static constexpr uint32_t kNoLink = ChunkLinks::kNoLink;

  // Starts a call, which may take several attempts. No holder counts as failed yet.
  void BeginCall();

  // Sets whether EnsureUp and HandleOf may wait for a holder, until the next BeginCall, which
  // allows it. If not, an operation that would wait fails instead. would_wait() then returns true
  // until the next of these calls. A thread that may wait can repeat the attempt.
  void set_may_wait(bool may_wait) {
    may_wait_ = may_wait;
    would_wait_ = false;
  }
  bool would_wait() const { return would_wait_; }
  // Sets until when EnsureUp and HandleOf may wait for a holder, until the next BeginCall, if that
  // is before their own deadlines.
  void set_wait_end(Instant end) { wait_end_ = end; }

  // Starts an attempt of a call. Add its corpora, then Tidy.
  void BeginAttempt();
  // Adds a corpus to the attempt, or finds it, and chooses the replica of each group for `work`
  // (client/holders/replica_choice.h). The result is valid until the next attempt.
  //   ResourceExhausted   the table has kLinkCountMax links.
  //   InvalidArgument     the call is over more than kCorpusCountMax corpora.
  //   NotFound            no holder has a chunk; names the chunk.
  absl::StatusOr<ChunkLinks*> AddCorpus(const std::shared_ptr<const Corpus>& corpus,
                                        const ReplicaWork& work);
  // Returns true if this attempt uses one kernel target, and that of any holder has become known or
  // changed since the choice. The first connection to a holder may reveal those of all. Then begin
  // the attempt again.
  bool TargetsChanged() const;
  // Closes one link that this attempt does not use and that has been idle for kLinkIdleMax. Closes
  // no more than one, because each costs a round trip.
  void Tidy();

  // Starts an attempt over one corpus: BeginAttempt, AddCorpus and Tidy.
  absl::StatusOr<ChunkLinks*> LinksFor(const std::shared_ptr<const Corpus>& corpus,
                                       const ReplicaWork& work = {});

  // Closes one link that has been idle for kLinkIdleMax, for a context that is not in use. Returns
  // when the next link will have been idle for that time, which may be in the past. Call it again
  // then. Returns kInstantMax if no other link is up.
  Instant CloseOneIdle(Instant now);

  // Returns the link of `chunk` and records that this call uses it. The chunk must have tokens. If
  // the chosen replica's link is not usable and another's is, returns that one. The chosen one's
  // session is opened meanwhile (client/holders/session_opener.h). Not if it `must_be_chosen`, for
  // a call that only some of the replicas can answer.
  HolderLink& Choose(ChunkLinks& chunk_links, uint32_t chunk, bool must_be_chosen = false);

  // Returns the link of `chunk` to this holder, as Choose. Returns null if the holder does not have
  // the chunk, has failed this call, or another is already queried for the chunk's group.
  HolderLink* ChooseAt(ChunkLinks& chunk_links, uint32_t chunk, const HolderPeer& holder);

  // Calls HolderLink::EnsureUp for a link of this attempt. If every group that needs the link has
  // another available holder, the link gets half the time that is left, and at most kOpenMax. A
  // stopped holder does not refuse a connection; a session takes some 5 ms here. If the holder has
  // no session left, closes this context's least recently used one there. Then retries for half a
  // second.
  absl::Status EnsureUp(HolderLink& link, Instant deadline);

  // Returns the handle of `chunk`, whose link must be up. If the handle is not known, resolves it
  // now, together with the rest of the corpus on that holder.
  //   NotFound            the holder does not have the chunk.
  //   FailedPrecondition  the holder's chunk differs from the directory's entry.
  //   Aborted             as HolderLink::Resolve.
  absl::StatusOr<uint32_t> HandleOf(ChunkLinks& chunk_links, uint32_t chunk, Instant deadline);

  // Returns `status` with "holder h0 (127.0.0.1:7401): " before its message. Drops the lane if it
  // broke, and the session if the holder no longer has it. Reopen and FailOver then refer to this
  // holder.
  absl::Status Fail(HolderLink& link, const absl::Status& status);
  // The same for a lane that brought a damaged answer: drops the lane and the session, and returns
  // DataLoss. Reopen then allows one more try at this holder.
  absl::Status FailLane(HolderLink& link, const absl::Status& status);
  // Returns true if a holder, and not this process, failed the last attempt.
  bool holder_failed() const { return failed_ != nullptr; }
  // Call if the time ran out before the holder answered. FailOver then refers to this holder.
  // Avoids it, if any chunk has another one.
  void NoteSilent(HolderLink& link);
  // Makes calls avoid a holder that is late. It is avoided until it answers, which a later call of
  // this context notices too, or until the pause of HolderAvoidance is over.
  void AvoidLate(HolderLink& link);
  // Whether any chunk of the attempt's corpora has several holders.
  bool AnyReplicated() const;
  // Returns true if every chunk requested from the holder has another one that the directory lists.
  // That one must not have failed this call, nor another call recently.
  bool OthersMayAnswer(const HolderPeer& peer) const;

  // Call after a failed attempt. Returns true if the session or lane caused the failure, so that
  // the same holder should be queried again over a new session. Returns true at most once per
  // holder and call. So a restarted holder costs a call one attempt. A session that could not be
  // opened is not retried.
  //
  // A holder whose epoch increases while the call reopens its session is reachable. It is queried
  // again, at most kEpochReopenMax times in all. A directory that restarts repeatedly causes that.
  bool Reopen();
  static constexpr int kEpochReopenMax = 4;

  // Call after an attempt failed with `status`. Marks the failing holder as avoided: for all calls
  // for a while, for this call to its end. Returns true if another attempt may help: every chunk
  // requested from it has another holder that has not failed this call. Each holder causes at most
  // one.
  bool FailOver(const absl::Status& status);

  // While this object exists, every group that has `peer` chooses it.
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
  absl::StatusOr<ChunkLinks*> FindLinks(const std::shared_ptr<const Corpus>& corpus);
  absl::Status Fill(ChunkLinks& chunk_links);
  absl::StatusOr<std::vector<uint32_t>> OrdinalsOf(ChunkLinks& chunk_links,
                                                   const ChunkPlacement& chunk);
  absl::Status MakeUp(HolderLink& link, Instant deadline);
  absl::Status RefuseToWait();
  void Choose(ChunkLinks& chunk_links, const ReplicaWork& work);
  // Chooses a replica whose link is usable instead of the group's, whose link is not, if there is
  // one that this attempt may use.
  HolderLink& UseOpen(ChunkLinks& chunk_links, ReplicaGroup& group);
  // Returns true if every group that was requested from `peer` has another holder that `may_query`
  // accepts.
  bool OthersCanBeTried(const HolderPeer& peer,
                        absl::FunctionRef<bool(const HolderPeer&)> may_query) const;
  // Closes one link that the attempt does not use. Returns the same as CloseOneIdle.
  Instant CloseIdleLink(Instant now);
  // Returns true if the attempt may use this link.
  bool Used(const HolderLink& link) const;
  void CloseAfterWork(HolderLink& link);
  void ReadLate();

  const LinkOptions* const options_;
  PeerTable* const peers_;
  ComputeStream* const stream_;
  const uint32_t first_turn_;  // ReplicaGroup::first
  ThreadRole role_;
  std::vector<std::unique_ptr<HolderLink>> links_;
  std::vector<std::unique_ptr<ChunkLinks>> corpora_;
  uint64_t use_count_ = 0;  // counts attempts
  Instant now_;             // the time of the last attempt, so that a call reads the clock once
  Instant next_idle_look_;  // before it, no link has been idle for kLinkIdleMax
  // The state of the call in progress.
  bool may_wait_ = true;
  Instant wait_end_ = kInstantMax;
  std::vector<HolderLink*> late_;            // those of AvoidLate that have not answered yet
  bool would_wait_ = false;                  // the attempt failed only because it may not wait
  std::vector<ChunkLinks*> current_;         // the corpora of the attempt
  HolderPeer* failed_ = nullptr;             // the holder that failed the last attempt
  bool session_failed_ = false;              // a new session with it may help
  bool silent_ = false;                      // NoteSilent has avoided it
  bool epoch_moved_ = false;                 // its epoch differs from the session's
  std::vector<const HolderPeer*> reopened_;  // queried again over a new session
  std::vector<const HolderPeer*> tried_;     // failed an earlier attempt
  const HolderPeer* forced_ = nullptr;
  ReplicaChooser chooser_;
};

}  // namespace ckv
