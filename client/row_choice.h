// Rows of a context that were chosen by index scores. Attends name them without listing them.
//
//   SelectRowsCall select = {.context = &context, .layer = layer, .queries = queries, .k = 2048};
//   CKV_ASSIGN_OR_RETURN(ckv::RowChoice choice, requester->ChooseRows(select, nullptr));
//   Segment segment = {.row_count = heads, .context = &context};
//   segment.choice = {.rows = &choice, .group_rows = heads};

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

namespace ckv {

class RowChoiceState;  // client/context/row_choice_state.h

// Made by Requester::ChooseRows. Copies share one choice. A choice may be attended at any layer, by
// any number of calls at once, and may outlive its requester and its context.
//
// Holders remember the rows of recent choices only (64 MiB each). If one has forgotten them, or its
// chunks are now attended elsewhere, the attend finds the rows again, once for each choice. They
// are the same if the holders have one kernel target.
class RowChoice {
 public:
  RowChoice() = default;  // has no tokens

  uint32_t token_count() const;
  // Returns the chosen rows of the caller's own, ascending, counted from its first own row. They
  // live as long as the choice.
  std::span<const uint32_t> own_rows(uint32_t token) const;

 private:
  friend class Requester;
  friend struct LayerCallSegments;  // client/plan/layer_call.h
  explicit RowChoice(std::shared_ptr<const RowChoiceState> state) : state_(std::move(state)) {}

  std::shared_ptr<const RowChoiceState> state_;
};

}  // namespace ckv
