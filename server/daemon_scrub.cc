#include "server/daemon_scrub.h"

#include <random>

namespace ckv {
namespace {

Member SelfOf(const Config& config, const std::string& address) {
  return {
      .id = {config.name}, .role = MemberRole::kHolder, .control_address = address, .epoch = {}};
}

RepairerOptions RepairsOf(const Config& config, Clock* clock) {
  RepairerOptions options;
  options.name = config.name;
  options.clock = clock;
  return options;
}

ScrubberOptions ScrubOf(const Config& config, Clock* clock) {
  ScrubberOptions options;
  options.name = config.name;
  options.clock = clock;
  options.bytes_per_second = config.store_scrub_bytes_per_second;
  options.seed = std::random_device()();
  return options;
}

}  // namespace

DaemonScrub::DaemonScrub(const Config& config, Clock* clock, Holder* holder,
                         const std::string& address, const std::string& directory)
    : source_(SelfOf(config, address), directory, clock),
      repairer_(
          RepairsOf(config, clock), &holder->store(), &source_,
          [holder, clock] { return holder->lease().LiveAt(clock->Now()); },
          &holder->scrub_counters()),
      scrubber_(ScrubOf(config, clock), &holder->store(), &holder->scrub_counters()) {}

}  // namespace ckv
