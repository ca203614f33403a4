// The scores of one holder or of this host, and the choice of the best among several.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "transport/wire_score.h"

namespace ckv {

// Rows that one party scores. It counts them through its chunks, which are in the order of the
// context's rows.
struct ScoreSource {
  static constexpr uint32_t kHere = 0xffffffff;  // this host
  static constexpr uint32_t kOwn = 0xfffffffe;   // the caller's own rows

  uint32_t peer_index = kHere;             // in the exchange
  std::vector<ChunkRun> runs;              // for a holder
  std::vector<uint32_t> first_rows = {0};  // [chunks + 1], of the source's own count
  std::vector<uint32_t> context_rows;      // [chunks] the first row of each in the context

  bool is_holder() const { return peer_index < kOwn; }
  uint64_t row_count() const { return first_rows.back(); }
  void AddChunk(uint32_t token_count, uint32_t context_row);
  // Adds the chunk's handle to the runs.
  void AddHandle(uint32_t handle);
  // Returns the context's number of a row of the source's own count.
  uint32_t ContextRow(uint32_t row) const;
};

// The findings of a source for one token.
struct TokenScores {
  uint32_t candidate_count = 0;
  std::vector<float> best;     // the best scores that are known, descending
  std::vector<uint32_t> rows;  // the first candidates, in the context's count

  // Set by ChooseCandidates. The first `above_count` candidates belong to the best of all. The next
  // `tie_count` have the k-th best score, and some of them may belong to the best, too.
  uint32_t above_count = 0;
  uint32_t tie_count = 0;
  // Set by SettleTies: so many of the first candidates are among the best of all.
  uint32_t chosen_count = 0;

  bool all_known() const { return best.size() == candidate_count; }
};

// Returns the k-th best of all known scores of one token, or -inf if fewer are known.
float KthBest(std::span<const TokenScores> sources, uint32_t k);

// Returns how many more scores a source must give before the k best of all are known: 0 if it has
// given enough.
uint32_t MissingScores(const TokenScores& source, float kth_best);

// Finds which candidates of one token belong to the k best of all sources, once no scores are
// missing.
void ChooseCandidates(std::span<TokenScores> sources, uint32_t k);

// Returns whether the rows of candidates with equal scores decide which of them are chosen.
bool HasTies(std::span<const TokenScores> sources, uint32_t k);

// Finds which of the candidates with the k-th best score are chosen: the lower rows. If HasTies,
// `rows` of each source has these candidates.
void SettleTies(std::span<TokenScores> sources, uint32_t k);

// Writes the chosen rows, ascending, to `out`, [k], and -1 after them. `rows` of each source has
// its chosen candidates.
void WriteChosen(std::span<const TokenScores> sources, std::span<int32_t> out);

}  // namespace ckv
