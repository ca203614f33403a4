#include "server/directory/replication/hot_plan.h"

#include <algorithm>
#include <utility>

#include "server/directory/replication/target_choice.h"

namespace ckv {
namespace {

class HotPlanner {
 public:
  explicit HotPlanner(HotPlanView view) : view_(std::move(view)), choice_(view_.live) {}

  std::vector<PlannedCopy> Plan() {
    for (const HotChunk& hot : view_.chunks) Plan(hot);
    return std::move(copies_);
  }

 private:
  void Plan(const HotChunk& hot) {
    const ChunkPlacement& chunk = hot.corpus->chunks[hot.ordinal];
    if (hot.leased.size() >= kHotCopyCountMax ||
        chunk.holders().size() + hot.leased.size() >= kReplicaCountMax)
      return;
    PlannedCopy copy = {.to = {}, .corpus = hot.corpus, .ordinal = hot.ordinal, .sources = {}};
    copy.is_leased = true;
    std::vector<size_t> taken;
    for (const std::vector<HolderId>* members : {&chunk.holders(), &hot.leased}) {
      for (const HolderId& member : *members) {
        const auto live = std::find_if(view_.live.begin(), view_.live.end(),
                                       [&](const CopyHolder& one) { return one.id == member; });
        if (live == view_.live.end()) continue;
        taken.push_back(static_cast<size_t>(live - view_.live.begin()));
        if (Lacks(member, chunk.id)) continue;
        if (!view_.past_elbow.contains(member)) return;
        copy.sources.push_back(member);
      }
    }
    if (copy.sources.empty()) return;
    std::sort(taken.begin(), taken.end());
    const uint64_t bytes = CopyBytesOf(hot.corpus->geometry, chunk);
    const uint32_t run = hot.ordinal / CopyRunChunks(hot.corpus->chunks.size());
    for (const size_t candidate : choice_.Rank(KeyOf(*hot.corpus), run, taken)) {
      CopyHolder& target = view_.live[candidate];
      const uint64_t reserve = target.is_durable ? 0 : target.capacity_bytes / 4;
      if (view_.past_elbow.contains(target.id) || target.room_bytes < reserve + bytes) continue;
      target.room_bytes -= bytes;
      copy.to = target.id;
      copies_.push_back(std::move(copy));
      return;
    }
  }

  bool Lacks(const HolderId& holder, const ChunkId& id) const {
    const auto lacking = view_.lacking.find(holder);
    return lacking != view_.lacking.end() && lacking->second->contains(id);
  }

  HotPlanView view_;
  TargetChoice choice_;
  std::vector<PlannedCopy> copies_;
};

}  // namespace

std::vector<PlannedCopy> PlanHotCopies(HotPlanView view) {
  return HotPlanner(std::move(view)).Plan();
}

}  // namespace ckv
