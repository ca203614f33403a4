// Shares adds up what each holder has, and what its share is. Collect finds the runs that a holder
// may take: aligned as in target_choice.h, cut where the holders of the chunks change. Take then
// goes through them, best first, while the holder has less than its share and the one that gives
// has more.

#include "server/directory/replication/share_plan.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "server/directory/replication/target_choice.h"

namespace ckv {
namespace {

constexpr size_t kNoTarget = SIZE_MAX;

struct Segment {
  double score = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
  uint64_t bytes = 0;
  std::shared_ptr<const Corpus> corpus;
  std::vector<size_t> holders;  // indices into CopyPlanView::live
};

class Shares {
 public:
  explicit Shares(const CopyPlanView& view) : view_(view), have_(view.live.size()) {
    for (size_t i = 0; i < view.live.size(); ++i) index_.emplace(view.live[i].id, i);
    double total = 0, weights = 0;
    for (const std::shared_ptr<const Corpus>& corpus : view.corpora) total += Count(*corpus);
    for (size_t i = 0; i < view.live.size(); ++i) weights += WeightOf(i);
    for (size_t i = 0; i < view.live.size(); ++i)
      share_.push_back(weights > 0 ? total * WeightOf(i) / weights : 0);
  }

  std::vector<ShareMove> Plan() {
    for (size_t i = 0; i < view_.live.size(); ++i) {
      if (view_.filling.contains(view_.live[i].id) && WeightOf(i) > 0) Fill(i);
    }
    return std::move(moves_);
  }

 private:
  double WeightOf(size_t holder) const {
    const CopyHolder& of = view_.live[holder];
    return of.is_draining ? 0 : static_cast<double>(of.capacity_bytes);
  }
  size_t IndexOf(const HolderId& id) const {
    const auto found = index_.find(id);
    return found == index_.end() ? kNoTarget : found->second;
  }

  // Adds the bytes of the corpus to those of its holders, and returns their sum.
  double Count(const Corpus& corpus) {
    double sum = 0;
    for (const ChunkPlacement& chunk : corpus.chunks) {
      const auto bytes = static_cast<double>(CopyBytesOf(corpus.geometry, chunk));
      for (const HolderId& id : chunk.holders()) {
        const size_t holder = IndexOf(id);
        if (holder == kNoTarget || WeightOf(holder) == 0) continue;
        have_[holder] += bytes;
        sum += bytes;
      }
    }
    return sum;
  }

  // Returns the holders of a chunk, or none if one of them is offline, drained, or lacks it.
  std::vector<size_t> WholeHolders(const ChunkPlacement& chunk) const {
    std::vector<size_t> holders;
    for (const HolderId& id : chunk.holders()) {
      const size_t holder = IndexOf(id);
      if (holder == kNoTarget || WeightOf(holder) == 0) return {};
      const auto lacking = view_.lacking.find(id);
      if (lacking != view_.lacking.end() && lacking->second->contains(chunk.id)) return {};
      holders.push_back(holder);
    }
    return holders;
  }

  void Collect(const std::shared_ptr<const Corpus>& corpus, size_t to,
               std::vector<Segment>& segments) const {
    const std::vector<ChunkPlacement>& chunks = corpus->chunks;
    const uint32_t run_chunks = CopyRunChunks(chunks.size());
    for (uint32_t begin = 0, end = 0; begin < chunks.size(); begin = end) {
      Segment segment = {.begin = begin, .corpus = corpus, .holders = WholeHolders(chunks[begin])};
      const uint32_t run_end = (begin / run_chunks + 1) * run_chunks;
      for (end = begin; end < std::min<size_t>(run_end, chunks.size()); ++end) {
        if (chunks[end].holders() != chunks[begin].holders() || WholeHolders(chunks[end]).empty())
          break;
        segment.bytes += CopyBytesOf(corpus->geometry, chunks[end]);
      }
      end = std::max(end, begin + 1);
      segment.end = end;
      const bool has =
          std::find(segment.holders.begin(), segment.holders.end(), to) != segment.holders.end();
      if (segment.holders.empty() || segment.bytes == 0 || has) continue;
      segment.score = ScoreOf(view_.live[to].id, view_.live[to].capacity_bytes, KeyOf(*corpus),
                              begin / run_chunks);
      segments.push_back(std::move(segment));
    }
  }

  void Fill(size_t to) {
    std::vector<Segment> segments;
    for (const std::shared_ptr<const Corpus>& corpus : view_.corpora) Collect(corpus, to, segments);
    std::stable_sort(segments.begin(), segments.end(),
                     [](const Segment& a, const Segment& b) { return a.score > b.score; });
    for (const Segment& segment : segments) Take(segment, to);
  }

  void Take(const Segment& segment, size_t to) {
    const auto bytes = static_cast<double>(segment.bytes);
    if (have_[to] + bytes > share_[to]) return;
    size_t from = kNoTarget;
    for (const size_t holder : segment.holders) {
      const bool gives = have_[holder] - bytes >= share_[holder];
      const bool is_fuller =
          from == kNoTarget || have_[holder] * share_[from] > have_[from] * share_[holder];
      if (gives && is_fuller && KeepsApart(segment.holders, holder, to)) from = holder;
    }
    if (from == kNoTarget) return;
    have_[to] += bytes;
    have_[from] -= bytes;
    moves_.push_back(
        {segment.corpus, segment.begin, segment.end, view_.live[from].id, view_.live[to].id});
  }

  // Whether `to` is as far from the other holders as `from` is.
  bool KeepsApart(const std::vector<size_t>& holders, size_t from, size_t to) const {
    return std::all_of(holders.begin(), holders.end(), [&](size_t other) {
      if (other == from) return true;
      const FailureDomain& domain = view_.live[other].domain;
      return SeparationOf(domain, view_.live[to].domain) >=
             SeparationOf(domain, view_.live[from].domain);
    });
  }

  const CopyPlanView& view_;
  absl::flat_hash_map<HolderId, size_t> index_;
  std::vector<double> have_;   // bytes that corpora place on each live holder
  std::vector<double> share_;  // bytes that it should have
  std::vector<ShareMove> moves_;
};

}  // namespace

std::vector<ShareMove> PlanShares(const CopyPlanView& view) { return Shares(view).Plan(); }

}  // namespace ckv
