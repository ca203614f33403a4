// Planner walks over the chunks of each corpus. HoldersOf sorts the holders of a chunk by what the
// table in copy_plan.h says about them; most chunks have the holders of the chunk before and lack
// none, so they cost a comparison. Choose finds a target for each copy that is missing: first the
// listed holders that lack the chunk, then the best of the others with room (target_choice.h).
// PlaceMade sorts in the same way, and keeps who stays.

#include "server/directory/replication/copy_plan.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/str_format.h"
#include "server/directory/replication/share_plan.h"
#include "server/directory/replication/target_choice.h"
#include "store/memory/chunk.h"

namespace ckv {
namespace {

constexpr size_t kNoHolder = SIZE_MAX;

// The holders of one chunk. Numbers are indices into CopyPlanView::live.
struct ChunkHolders {
  std::vector<size_t> present;  // live and not drained
  std::vector<size_t> leaving;  // live and drained
  std::vector<size_t> lackers;  // live, not drained, lack the chunk
  std::vector<size_t> made;     // made a copy, and are not among `present`
  size_t away_count = 0;

  size_t counted() const { return present.size() + made.size() + away_count; }
};

uint32_t WantedOf(const Corpus& corpus) { return std::max<uint32_t>(1, corpus.replica_count); }

const std::vector<HolderId>* FindIn(const HoldersByChunk* copies, const ChunkId& id) {
  if (copies == nullptr) return nullptr;
  const auto found = copies->find(id);
  return found == copies->end() ? nullptr : &found->second;
}

bool Names(const std::vector<HolderId>* holders, const HolderId& id) {
  return holders != nullptr && std::find(holders->begin(), holders->end(), id) != holders->end();
}

// Sorts the holders of the chunks of one corpus.
class Sorter {
 public:
  explicit Sorter(const CopyPlanView& view) : view_(view) {
    for (size_t i = 0; i < view.live.size(); ++i) {
      index_.emplace(view.live[i].id, i);
      const auto lacking = view.lacking.find(view.live[i].id);
      lacking_.push_back(lacking == view.lacking.end() ? nullptr : lacking->second.get());
    }
  }

  void Enter(const Corpus& corpus) {
    made_ = CopiesOf(view_.made, corpus);
    leased_ = CopiesOf(view_.leased, corpus);
    failed_ = CopiesOf(view_.failed, corpus);
  }

  size_t IndexOf(const HolderId& id) const {
    const auto found = index_.find(id);
    return found == index_.end() ? kNoHolder : found->second;
  }
  bool Lacks(size_t holder, const ChunkId& id) const {
    return lacking_[holder] != nullptr && lacking_[holder]->contains(id);
  }
  bool Failed(size_t holder, const ChunkId& id) const {
    return Names(FindIn(failed_, id), view_.live[holder].id);
  }
  bool HasMade(size_t holder, const ChunkId& id) const {
    return Names(FindIn(made_, id), view_.live[holder].id);
  }

  ChunkHolders HoldersOf(const ChunkPlacement& chunk) const {
    ChunkHolders sorted;
    for (const HolderId& id : chunk.holders()) {
      const size_t holder = IndexOf(id);
      if (holder == kNoHolder) {
        sorted.away_count += view_.away.contains(id) ? 1 : 0;
      } else if (view_.live[holder].is_draining) {
        if (!Lacks(holder, chunk.id)) sorted.leaving.push_back(holder);
      } else if (!Lacks(holder, chunk.id)) {
        sorted.present.push_back(holder);
      } else if (!HasMade(holder, chunk.id)) {
        sorted.lackers.push_back(holder);
      }
    }
    const std::vector<HolderId>* const made = FindIn(made_, chunk.id);
    if (made == nullptr) return sorted;
    for (const HolderId& id : *made) {
      const size_t holder = IndexOf(id);
      if (holder == kNoHolder || view_.live[holder].is_draining) continue;
      if (std::find(sorted.present.begin(), sorted.present.end(), holder) == sorted.present.end())
        sorted.made.push_back(holder);
    }
    return sorted;
  }

  // Adds the live members with leased copies that are not among `sources`.
  void AddLeased(const ChunkId& id, std::vector<HolderId>& sources) const {
    const std::vector<HolderId>* const leased = FindIn(leased_, id);
    if (leased == nullptr) return;
    for (const HolderId& member : *leased) {
      if (IndexOf(member) != kNoHolder && !Names(&sources, member)) sources.push_back(member);
    }
  }

  // Returns true if the holder is live, keeps its chunks, and lacks none.
  bool IsPlain(size_t holder) const {
    return holder != kNoHolder && !view_.live[holder].is_draining && lacking_[holder] == nullptr;
  }
  bool HasCopies() const { return made_ != nullptr; }

 private:
  static const HoldersByChunk* CopiesOf(const CopiesByCorpus& copies, const Corpus& corpus) {
    const auto found = copies.find(KeyOf(corpus));
    return found == copies.end() ? nullptr : &found->second;
  }

  const CopyPlanView& view_;
  absl::flat_hash_map<HolderId, size_t> index_;
  std::vector<const LackingChunks::Chunks*> lacking_;
  const HoldersByChunk* made_ = nullptr;  // null if the corpus has none
  const HoldersByChunk* leased_ = nullptr;
  const HoldersByChunk* failed_ = nullptr;
};

// Returns the chunk's holders once made copies are listed. `replaced` is the holder that a made
// copy replaces, or null.
std::vector<HolderId> NextHolders(const CopyPlanView& view, const Sorter& sorter,
                                  const Corpus& corpus, const ChunkPlacement& chunk,
                                  const HolderId* replaced = nullptr) {
  const ChunkHolders sorted = sorter.HoldersOf(chunk);
  const size_t wanted = WantedOf(corpus);
  const bool is_enough = sorted.counted() >= wanted || chunk.token_count == 0;
  std::vector<HolderId> next;
  size_t counted = 0;
  for (const HolderId& id : chunk.holders()) {
    if (replaced != nullptr && id == *replaced && !sorted.made.empty()) continue;
    const size_t holder = sorter.IndexOf(id);
    const bool is_away = holder == kNoHolder && view.away.contains(id);
    const bool counts =
        is_away || (holder != kNoHolder && !view.live[holder].is_draining &&
                    (!sorter.Lacks(holder, chunk.id) || sorter.HasMade(holder, chunk.id)));
    if (counts || !is_enough) next.push_back(id);
    counted += counts ? 1 : 0;
  }
  for (const size_t holder : sorted.made) {
    const HolderId& id = view.live[holder].id;
    if (counted >= wanted || next.size() >= kReplicaCountMax) break;
    if (std::find(next.begin(), next.end(), id) != next.end()) continue;
    next.push_back(id);
    ++counted;
  }
  // An empty chunk has no rows to copy. It must not lose its last holder.
  return next.empty() ? chunk.holders() : next;
}

class Planner {
 public:
  explicit Planner(const CopyPlanView& view) : view_(view), sorter_(view), choice_(view.live) {}

  void Over(const std::shared_ptr<const Corpus>& corpus) {
    sorter_.Enter(*corpus);
    const uint32_t run_chunks = CopyRunChunks(corpus->chunks.size());
    const std::vector<HolderId>* plain = nullptr;  // the last holders that need nothing
    for (uint32_t i = 0; i < corpus->chunks.size(); ++i) {
      const ChunkPlacement& chunk = corpus->chunks[i];
      if (plain != nullptr && chunk.holders() == *plain) continue;
      if (NeedsNothing(*corpus, chunk)) {
        plain = &chunk.holders();
        continue;
      }
      Look(corpus, i, i / run_chunks);
    }
  }

  CopyPlan Finish() {
    const bool is_idle =
        plan_.stuck.count == 0 && plan_.under_replicated_count == 0 && plan_.bytes_left == 0;
    if (is_idle && !view_.filling.empty()) AddShares();
    for (std::vector<PlannedCopy>& copies : by_live_count_) {
      const size_t room = CopyPlan::kCopyCountMax - plan_.copies.size();
      if (copies.size() > room) copies.resize(room);
      std::move(copies.begin(), copies.end(), std::back_inserter(plan_.copies));
    }
    return std::move(plan_);
  }

 private:
  // True if the list alone shows that the chunk has its copies.
  bool NeedsNothing(const Corpus& corpus, const ChunkPlacement& chunk) const {
    return !sorter_.HasCopies() && chunk.holders().size() >= WantedOf(corpus) &&
           std::all_of(chunk.holders().begin(), chunk.holders().end(),
                       [&](const HolderId& id) { return sorter_.IsPlain(sorter_.IndexOf(id)); });
  }

  void Look(const std::shared_ptr<const Corpus>& corpus, uint32_t ordinal, uint32_t run) {
    const ChunkPlacement& chunk = corpus->chunks[ordinal];
    const ChunkHolders sorted = sorter_.HoldersOf(chunk);
    const size_t wanted = WantedOf(*corpus);
    const size_t live_count = sorted.present.size() + sorted.leaving.size() + sorted.made.size();
    if (live_count < wanted && chunk.token_count > 0) ++plan_.under_replicated_count;
    for (const size_t holder : sorted.leaving) {
      CopyPlan::OfHolder& leaving = plan_.holders[view_.live[holder].id];
      ++leaving.leaving_count;
      if (sorted.counted() < wanted) leaving.leaving_bytes += CopyBytesOf(corpus->geometry, chunk);
    }
    if (NextHolders(view_, sorter_, *corpus, chunk) != chunk.holders())
      plan_.corpora[KeyOf(*corpus)].is_changeable = true;
    if (chunk.token_count > 0 && sorted.counted() < wanted)
      PlanChunk(corpus, ordinal, run, sorted, wanted - sorted.counted());
  }

  void PlanChunk(const std::shared_ptr<const Corpus>& corpus, uint32_t ordinal, uint32_t run,
                 const ChunkHolders& sorted, size_t need) {
    const ChunkPlacement& chunk = corpus->chunks[ordinal];
    const uint64_t bytes = CopyBytesOf(corpus->geometry, chunk);
    plan_.bytes_left += need * bytes;
    std::vector<HolderId> sources;
    for (const auto* holders : {&sorted.present, &sorted.leaving, &sorted.made}) {
      for (const size_t holder : *holders) sources.push_back(view_.live[holder].id);
    }
    const size_t live_count = std::min(sources.size(), by_live_count_.size() - 1);
    sorter_.AddLeased(chunk.id, sources);
    if (sources.empty()) {
      // A holder that is away may have it.
      if (sorted.away_count == 0) NoteStuck(*corpus, chunk, sorted, need, "no live holder has it");
      return;
    }
    std::vector<size_t> taken = sorted.present;
    taken.insert(taken.end(), sorted.made.begin(), sorted.made.end());
    for (; need > 0; --need) {
      const size_t target = Choose(*corpus, chunk, run, sorted.lackers, taken, bytes);
      if (target == kNoHolder) break;
      taken.push_back(target);
      plan_.holders[view_.live[target].id].bytes += bytes;
      ++plan_.corpora[KeyOf(*corpus)].waiting_count;
      std::vector<PlannedCopy>& copies = by_live_count_[live_count];
      if (copies.size() < CopyPlan::kCopyCountMax)
        copies.push_back({view_.live[target].id, corpus, ordinal, sources});
    }
    if (need > 0) NoteStuck(*corpus, chunk, sorted, need, "no other holder has room for it");
  }

  // Returns the holder that gets the next copy, or kNoHolder.
  size_t Choose(const Corpus& corpus, const ChunkPlacement& chunk, uint32_t run,
                const std::vector<size_t>& lackers, const std::vector<size_t>& taken,
                uint64_t bytes) {
    const auto may = [&](size_t holder) {
      const auto planned = plan_.holders.find(view_.live[holder].id);
      const uint64_t received = planned == plan_.holders.end() ? 0 : planned->second.bytes;
      return received + bytes <= view_.live[holder].room_bytes && !sorter_.Failed(holder, chunk.id);
    };
    for (const size_t holder : lackers) {
      if (std::find(taken.begin(), taken.end(), holder) == taken.end() && may(holder))
        return holder;
    }
    for (const size_t holder : choice_.Rank(KeyOf(corpus), run, taken)) {
      if (may(holder)) return holder;
    }
    return kNoHolder;
  }

  void AddShares() {
    plan_.has_shares = true;
    for (const ShareMove& move : PlanShares(view_)) {
      plan_.moving.insert(move.to);
      sorter_.Enter(*move.corpus);
      for (uint32_t i = move.begin; i < move.end; ++i) AddMove(move, i);
    }
  }

  void AddMove(const ShareMove& move, uint32_t ordinal) {
    const ChunkPlacement& chunk = move.corpus->chunks[ordinal];
    const CorpusKey key = KeyOf(*move.corpus);
    const size_t to = sorter_.IndexOf(move.to);
    if (chunk.token_count == 0) return;
    plan_.replaced[key][chunk.id] = move.from;
    if (sorter_.HasMade(to, chunk.id)) {
      plan_.corpora[key].is_changeable = true;
      return;
    }
    const uint64_t bytes = CopyBytesOf(move.corpus->geometry, chunk);
    uint64_t& received = plan_.holders[move.to].bytes;
    if (sorter_.Failed(to, chunk.id) || received + bytes > view_.live[to].room_bytes) return;
    received += bytes;
    plan_.bytes_left += bytes;
    ++plan_.corpora[key].waiting_count;
    if (by_live_count_.back().size() < CopyPlan::kCopyCountMax)
      by_live_count_.back().push_back({move.to, move.corpus, ordinal, chunk.holders()});
  }

  void NoteStuck(const Corpus& corpus, const ChunkPlacement& chunk, const ChunkHolders& sorted,
                 size_t count, std::string_view why) {
    const std::string text =
        absl::StrFormat("corpus %s, chunk %s: %s", corpus.name, chunk.id.ShortHex(), why);
    const auto note = [&](StuckCopies& stuck) {
      if (stuck.count == 0) stuck.why = text;
      stuck.count += count;
    };
    note(plan_.stuck);
    for (const size_t holder : sorted.leaving) note(plan_.holders[view_.live[holder].id].stuck);
  }

  const CopyPlanView& view_;
  Sorter sorter_;
  TargetChoice choice_;
  CopyPlan plan_;
  std::array<std::vector<PlannedCopy>, kReplicaCountMax + 1> by_live_count_;
};

}  // namespace

uint64_t CopyBytesOf(const Geometry& geometry, const ChunkPlacement& chunk) {
  return ChunkLayout(geometry, chunk.token_count).total_bytes();
}

CopyPlan PlanCopies(const CopyPlanView& view) {
  Planner planner(view);
  for (const std::shared_ptr<const Corpus>& corpus : view.corpora) planner.Over(corpus);
  return planner.Finish();
}

std::optional<Corpus> PlaceMade(const CopyPlanView& view, const CopyPlan& plan,
                                const Corpus& corpus) {
  Sorter sorter(view);
  sorter.Enter(corpus);
  const auto moved = plan.replaced.find(KeyOf(corpus));
  std::optional<Corpus> changed;
  for (size_t i = 0; i < corpus.chunks.size(); ++i) {
    const HolderId* replaced = nullptr;
    if (moved != plan.replaced.end()) {
      const auto from = moved->second.find(corpus.chunks[i].id);
      if (from != moved->second.end()) replaced = &from->second;
    }
    std::vector<HolderId> next = NextHolders(view, sorter, corpus, corpus.chunks[i], replaced);
    if (next == corpus.chunks[i].holders()) continue;
    if (!changed) changed = corpus;
    changed->chunks[i].set_holders(std::move(next));
  }
  return changed;
}

}  // namespace ckv
