// The best rows of the tokens of score requests, kept for the attends that follow.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "attention/score/top_rows.h"
#include "store/memory/chunk_table.h"

namespace ckv {

// The best rows of each token of one score request. Rows are counted through its chunks in their
// order. Immutable.
class Candidates {
 public:
  struct Chunk {
    ChunkLocator chunk;
    uint32_t token_count = 0;
  };
  // Made from the chunks of a request of a tenant.
  Candidates(std::string tenant, std::span<const Chunk> chunks);
  // Adds the best rows of the next token, the best first.
  void Add(std::span<const ScoredRow> best);

  uint32_t token_count() const { return static_cast<uint32_t>(ends_.size()); }
  // Returns the best rows of a token, the best first.
  std::span<const ScoredRow> best(uint32_t token) const {
    const size_t begin = token == 0 ? 0 : ends_[token - 1];
    return std::span(rows_).subspan(begin, ends_[token] - begin);
  }
  struct Rows {
    uint32_t begin = 0, end = 0;
  };
  // Returns the rows of a chunk, or nothing if the request did not name it.
  std::optional<Rows> RowsOf(ChunkLocator chunk) const;
  const std::string& tenant() const { return tenant_; }
  size_t bytes() const;

 private:
  struct Place {
    ChunkLocator chunk;
    Rows rows;
  };
  std::string tenant_;
  std::vector<Place> places_;    // by slot
  std::vector<ScoredRow> rows_;  // token after token
  std::vector<size_t> ends_;     // [tokens] in rows_
};

// The limit of the bytes of all candidates of a holder: 4,096 tokens with 2,048 rows each.
inline constexpr size_t kCandidateBytesMax = size_t{64} << 20;

// Returns the OutOfRange error for candidates that are not kept, or no longer.
absl::Status CandidatesGone(uint64_t number);

// Belongs to the dispatcher's thread. If there is no room, the session with the most bytes loses
// its oldest candidates. So one session cannot displace those of all others.
class CandidateTable {
 public:
  explicit CandidateTable(size_t bytes_max = kCandidateBytesMax) : bytes_max_(bytes_max) {}
  // Keeps them under a number, on the account of a session. Replaces older ones of that number.
  void Insert(uint64_t session_ordinal, uint64_t number,
              std::shared_ptr<const Candidates> candidates);
  // Returns the candidates, or null if they are not kept or of another tenant. They are valid until
  // the next Insert.
  const Candidates* Find(const std::string& tenant, uint64_t number) const;
  size_t bytes() const { return bytes_; }

 private:
  struct Kept {
    uint64_t session_ordinal = 0;
    std::shared_ptr<const Candidates> candidates;
  };
  struct Account {
    std::deque<uint64_t> numbers;  // the oldest first
    size_t bytes = 0;
  };
  void Drop(uint64_t number);

  const size_t bytes_max_;
  size_t bytes_ = 0;
  absl::flat_hash_map<uint64_t, Kept> kept_;         // by number
  absl::flat_hash_map<uint64_t, Account> accounts_;  // by session
};

}  // namespace ckv
