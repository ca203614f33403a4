#include "server/directory/coverage/coverage.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

namespace ckv {
namespace {

void NoteName(const HolderId& holder, std::vector<std::string>& names) {
  if (names.size() >= CorpusFacts::kNamedMax) return;
  if (std::find(names.begin(), names.end(), holder.name) == names.end())
    names.push_back(holder.name);
}

class Walk {
 public:
  Walk(const CoverageView& view, Coverage& coverage) : view_(view), coverage_(coverage) {}

  void Over(const CoverageView::Entry& entry) {
    const Corpus& corpus = *entry.corpus;
    CorpusFacts facts;
    facts.name = corpus.name;
    facts.tenant = corpus.tenant;
    facts.chunk_count = corpus.chunks.size();
    auto leased = entry.leased.begin();
    for (uint32_t i = 0; i < corpus.chunks.size(); ++i) {
      while (leased != entry.leased.end() && *leased < i) ++leased;
      Look(corpus.chunks[i], leased != entry.leased.end() && *leased == i, facts);
    }
    coverage_.missing_chunk_count += facts.missing_count;
    coverage_.missing_copy_count += facts.missing_copy_count;
    if (facts.missing_copy_count == 0) return;
    std::sort(facts.away.begin(), facts.away.end());
    std::sort(facts.lackers.begin(), facts.lackers.end());
    coverage_.corpora.push_back(std::move(facts));
  }

 private:
  void Look(const ChunkPlacement& chunk, bool is_leased, CorpusFacts& facts) {
    if (chunk.token_count == 0) return;  // no holder is queried for it
    // Copies under a lease are dropped with it, so a listed member has its copy.
    bool is_there = is_leased;
    lackers_.clear();
    for (const HolderId& holder : chunk.holders()) {
      if (!view_.holders.live.contains(holder)) {
        NoteName(holder, facts.away);
        ++facts.missing_copy_count;
      } else if (view_.holders.Lacks(holder, chunk.id)) {
        NoteName(holder, facts.lackers);
        ++facts.missing_copy_count;
        lackers_.push_back(&holder);
      } else {
        is_there = true;
      }
    }
    if (!is_there) ++facts.missing_count;
    for (const HolderId* holder : lackers_) {
      Coverage::OfHolder& counts = coverage_.holders[*holder];
      ++counts.lacking_count;
      if (!is_there) ++counts.sole_count;
    }
  }

  const CoverageView& view_;
  Coverage& coverage_;
  std::vector<const HolderId*> lackers_;
};

}  // namespace

Coverage Cover(const CoverageView& view) {
  Coverage coverage;
  Walk walk(view, coverage);
  uint64_t left = kCoverageChunkCountMax;
  for (const CoverageView::Entry& entry : view.corpora) {
    if (entry.corpus->chunks.size() > left) {
      ++coverage.skipped_corpus_count;
      continue;
    }
    left -= entry.corpus->chunks.size();
    walk.Over(entry);
  }
  // Corpora with missing chunks, which cannot be served, are first.
  std::sort(coverage.corpora.begin(), coverage.corpora.end(),
            [](const CorpusFacts& a, const CorpusFacts& b) {
              if ((a.missing_count > 0) != (b.missing_count > 0)) return a.missing_count > 0;
              return std::tie(a.tenant, a.name) < std::tie(b.tenant, b.name);
            });
  if (coverage.corpora.size() > kCoverageCorpusCountMax) {
    coverage.skipped_corpus_count += coverage.corpora.size() - kCoverageCorpusCountMax;
    coverage.corpora.resize(kCoverageCorpusCountMax);
  }
  return coverage;
}

bool LeaveOutLacking(const CoverageView::Holders& holders, ChunkPlacement& chunk) {
  const bool is_elsewhere =
      !chunk.leased().empty() ||
      std::any_of(chunk.holders().begin(), chunk.holders().end(),
                  [&](const HolderId& holder) { return holders.Has(holder, chunk.id); });
  if (!is_elsewhere) return false;
  const auto lacks = [&](const HolderId& holder) { return holders.Lacks(holder, chunk.id); };
  // Most chunks are whole, and keep sharing their lists.
  if (std::none_of(chunk.holders().begin(), chunk.holders().end(), lacks)) return false;
  std::erase_if(chunk.mutable_holders(), lacks);
  return true;
}

}  // namespace ckv
