// Plans an op: which cells each token sees here, and which chunks it attends elsewhere.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "client/bindings/ggml/attached.h"
#include "client/bindings/ggml/mla_op.h"
#include "client/bindings/ggml/reference_reader.h"
#include "client/bindings/ggml/visible_cells.h"

namespace ckv::ggml {

struct TokenPlan {
  static constexpr uint32_t kNoList = UINT32_MAX;

  uint32_t stream = 0, token = 0;
  uint32_t list = kNoList;  // the chunks attended elsewhere (OpPlan::list)
  uint32_t range_begin = 0, range_count = 0;
};

// Reuses its memory from op to op. Used by one thread at a time.
class OpPlan {
 public:
  // Plans the op. A token attends the chunks that the references among its visible cells represent.
  // A token that sees no reference attends `otherwise`, unless that is null.
  //   InvalidArgument     the mask has a value other than 0 and -inf.
  //   DataLoss, FailedPrecondition  as ReferenceReader, for a cell that a token sees. Cells that no
  //                                 token sees may contain anything.
  // After an error the plan has no tokens.
  absl::Status Make(const MlaOp& op, const std::shared_ptr<const Attached>& otherwise,
                    ReferenceReader& reader);

  // Returns all tokens: first those that attend something elsewhere, list by list, then the others.
  // Within each list they are in the op's order.
  std::span<const TokenPlan> tokens() const { return tokens_; }
  // Returns how many tokens attend something elsewhere.
  uint32_t routed_count() const { return routed_count_; }
  const AttachedList& list(uint32_t index) const { return lists_[index]; }
  // Returns the cells that a token sees and that are rows.
  std::span<const CellRange> ranges(const TokenPlan& token) const {
    return std::span(ranges_).subspan(token.range_begin, token.range_count);
  }

 private:
  // A visible cell that may be a reference.
  struct Candidate {
    uint32_t cell = 0;
    std::shared_ptr<const Attached> attached;  // null until the cell is read
  };

  absl::Status AddStream(const MlaOp& op, uint32_t stream, uint32_t otherwise,
                         ReferenceReader& reader);
  void FindCandidates(const MlaOp& op, uint32_t stream);
  // Removes the references from the token's cells, and records them in `met_`.
  absl::Status Split(const MlaOp& op, TokenPlan& token, ReferenceReader& reader);
  uint32_t ListOf(AttachedList list);
  void Clear();

  std::vector<TokenPlan> tokens_;
  std::vector<CellRange> ranges_;
  std::vector<AttachedList> lists_;
  uint32_t routed_count_ = 0;

  // State of the stream that is being added.
  std::vector<CellRange> seen_;  // including references
  std::vector<Candidate> candidates_;
  std::vector<uint32_t> met_, last_met_;  // indices of candidates that a token sees
};

}  // namespace ckv::ggml
