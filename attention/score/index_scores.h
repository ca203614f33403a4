// Scores of index keys, by which sparse attention selects rows (IndexShape in proto/geometry.h).

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "attention/partial.h"
#include "attention/score/top_rows.h"
#include "attention/worker_pool.h"
#include "proto/geometry.h"
#include "proto/index_query.h"

namespace ckv {

// Keys of one layer of a chunk, [keys.count] as the shape stores them, and how rows are counted:
// key i is row first_row + i.
struct IndexKeyRun {
  RowView keys;
  uint32_t first_row = 0;
};

// Selects the rows with the highest scores among any number of keys. It keeps its memory from call
// to call. Not thread-safe; Run uses the threads of its pool.
class IndexSearch {
 public:
  explicit IndexSearch(WorkerPool* pool);  // must outlive it
  ~IndexSearch();

  // Scores all keys of `runs` for each token, and keeps the k best rows of each (TopRows). Rows are
  // counted once: runs do not overlap.
  //
  //   score = shape.scale x scale of the key x sum over h of w_h x max(0, q_h . k)
  //
  // Products are exact; sums are f32. At 256 values and 128 heads a score errs by at most
  //
  //   2^-15 x shape.scale x scale of the key x sum over h of |w_h| x sum over d of |q_hd x k_d|
  //
  // A score depends on the token's query, its key and the kernel target alone, bit for bit. So
  // holders of one target give a row the same score as one that has all rows.
  void Run(const IndexShape& shape, const IndexQueryView& queries,
           std::span<const IndexKeyRun> runs, uint32_t k) noexcept;

  // Returns the best rows of a token of the last Run, the best first, valid until the next Run.
  std::span<const ScoredRow> best(uint32_t token) const { return best_[token]; }

 private:
  struct Worker;
  // 64 bytes of it are aligned to as many.
  struct alignas(64) TileQuery {
    uint16_t halves[32];
  };

  WorkerPool& pool_;
  std::vector<Worker> workers_;
  std::vector<float> packed_, weights_;  // each token's, with heads padded to a multiple of 16
  std::vector<TileQuery> tiles_;         // the same for the tile unit, if the target uses it
  std::vector<IndexKeyRun> blocks_;
  std::vector<std::span<const ScoredRow>> best_;
};

// Computes the scores of one run for one token: scores[i] of keys.Row(i). The kernel of Run on the
// vector targets. The target AMX has its own (score_amx.h).
// Heads are padded with zeros to a multiple of 16.
//   q        f32 [dim][heads], as PackIndexQuery writes it
//   weights  f32 [heads]
void ScoreIndexKeys(const IndexShape& shape, const float* q, const float* weights,
                    const RowView& keys, float* scores) noexcept;
// Lays a token's query out for ScoreIndexKeys.
void PackIndexQuery(const IndexShape& shape, const IndexQueryView& queries, uint32_t token,
                    float* q) noexcept;

}  // namespace ckv
