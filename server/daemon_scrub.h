// The check and the repair of a daemon's store, from its options.

#pragma once

#include <string>

#include "proto/clock.h"
#include "server/config.h"
#include "server/holder.h"
#include "server/repair_stub.h"
#include "server/repairer.h"
#include "server/scrubber.h"

namespace ckv {

// Runs while it lives.
class DaemonScrub {
 public:
  // `address` is where peers reach this holder, `directory` where this process reaches the
  // directory. `holder` must outlive it.
  DaemonScrub(const Config& config, Clock* clock, Holder* holder, const std::string& address,
              const std::string& directory);

 private:
  RepairStub source_;
  Repairer repairer_;
  Scrubber scrubber_;
};

}  // namespace ckv
