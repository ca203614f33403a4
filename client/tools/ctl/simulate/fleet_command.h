// ckvctl simulate fleet: a fleet of ckv on paper, under each policy.

#pragma once

#include "client/tools/ctl/commands.h"
#include "client/tools/ctl/ctl.h"

namespace ckv::ctl {

void AddSimulateFleetVerb(CLI::App& simulate, Ctl& ctl);

}  // namespace ckv::ctl
