// Tells of each token of an op which cells it sees here, and which chunks it attends elsewhere.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "client/ggml/attached.h"
#include "client/ggml/mla_op.h"
#include "client/ggml/reference_reader.h"
#include "client/ggml/visible_cells.h"

namespace ckv::ggml {

struct TokenPlan {
  static constexpr uint32_t kNoList = UINT32_MAX;

  uint32_t stream = 0, token = 0;
  uint32_t list = kNoList;  // the chunks that it attends elsewhere (OpPlan::list)
  uint32_t range_begin = 0, range_count = 0;
};

// Keeps its memory from op to op. One thread at a time.
class OpPlan {
 public:
  // Plans the op. A token attends elsewhere what the references among its visible cells stand for.
  // A token that sees none attends `otherwise`, unless that is null.
  //   InvalidArgument     the mask is none that ckv knows.
  //   DataLoss, FailedPrecondition  as ReferenceReader, of a cell that a token sees. Cells that no
  //                       token sees may have anything.
  // After an error it has no tokens.
  absl::Status Make(const MlaOp& op, const std::shared_ptr<const Attached>& otherwise,
                    ReferenceReader& reader);

  // All tokens: first those that attend something elsewhere, list by list, then the others. Among
  // them they are in the op's order.
  std::span<const TokenPlan> tokens() const { return tokens_; }
  // How many tokens attend something elsewhere.
  uint32_t routed_count() const { return routed_count_; }
  const AttachedList& list(uint32_t index) const { return lists_[index]; }
  // The cells that a token sees and that are rows.
  std::span<const CellRange> ranges(const TokenPlan& token) const {
    return std::span(ranges_).subspan(token.range_begin, token.range_count);
  }

 private:
  // A visible cell that may be a reference.
  struct Candidate {
    uint32_t cell = 0;
    std::shared_ptr<const Attached> attached;  // once it was read
  };

  absl::Status AddStream(const MlaOp& op, uint32_t stream, uint32_t otherwise,
                         ReferenceReader& reader);
  void FindCandidates(const MlaOp& op, uint32_t stream);
  // Leaves the references out of the token's cells, and notes them in `met_`.
  absl::Status Split(const MlaOp& op, TokenPlan& token, ReferenceReader& reader);
  uint32_t ListOf(AttachedList list);
  void Clear();

  std::vector<TokenPlan> tokens_;
  std::vector<CellRange> ranges_;
  std::vector<AttachedList> lists_;
  uint32_t routed_count_ = 0;

  // The stream that is being added has these.
  std::vector<CellRange> seen_;  // references among them
  std::vector<Candidate> candidates_;
  std::vector<uint32_t> met_, last_met_;  // indices of candidates that a token sees
};

}  // namespace ckv::ggml
