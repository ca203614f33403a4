// Records which chunks a corpus had when this process first attended it whole.

#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "client/bindings/ggml/attached.h"
#include "proto/corpus.h"

namespace ckv::ggml {

// A reference has a digest of its chunks. A corpus that is attended by its name alone has none, so
// its first use defines its chunks. Layers of one token, and tokens of one sequence, thus never
// attend two versions of it. Thread-safe; all contexts of a process share one.
class CorpusPins {
 public:
  // At the first call for `attached`, records the chunks of `corpus`.
  //   FailedPrecondition  the corpus was published again since, with other chunks.
  absl::Status Check(const Attached& attached, const Corpus& corpus) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  absl::Mutex mu_;
  std::map<std::string, std::array<uint8_t, 32>> digests_ ABSL_GUARDED_BY(mu_);  // by Key()
};

}  // namespace ckv::ggml
