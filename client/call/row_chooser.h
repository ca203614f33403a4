// Makes the choices of Requester::ChooseRows, and finds their rows again if holders have dropped
// the candidates.

#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/call/row_selector.h"
#include "client/calls.h"
#include "client/context/context_state.h"
#include "client/context/row_choice_state.h"
#include "client/plan/layer_call.h"
#include "client/plan/route_call.h"

namespace ckv {

// Part of a call context, with its selector.
class RowChooser {
 public:
  explicit RowChooser(RowSelector* selector) : selector_(*selector) {}

  // One attempt of Requester::ChooseRows. The choice keeps `context`, that of the selection.
  absl::StatusOr<std::shared_ptr<const RowChoiceState>> Choose(
      const RowSelection& selection, std::shared_ptr<const ContextState> context,
      SelectRowsReport* report);

  // Finds the rows of the choices of a call, whose candidates are gone. Its segments, which are
  // `segments`, then attend them by index.
  absl::Status FindAgain(const RouteCall& call, LayerCallSegments& segments);

 private:
  RowSelector& selector_;
};

}  // namespace ckv
