#include "server/daemon/process_facts.h"

#include <algorithm>
#include <string>

#include "proto/base/version.h"

namespace ckv {

ProcessFacts ProcessFactsOf(const Clock& clock, Instant started) {
  ProcessFacts facts;
  facts.version = std::string(Version());
  facts.commit = std::string(Commit());
  const auto ago = std::chrono::duration_cast<std::chrono::milliseconds>(clock.Now() - started);
  facts.started_ago_ms = static_cast<uint64_t>(std::max<int64_t>(0, ago.count()));
  return facts;
}

}  // namespace ckv
