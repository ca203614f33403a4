#include "server/directory/tables/leadership.h"

#include "absl/strings/str_format.h"

namespace ckv {

absl::Status Leadership::Check() const {
  if (Leads()) return absl::OkStatus();
  if (leads_ || leader_.empty()) {
    return absl::UnavailableError(
        "no directory of this fleet leads now: etcd elects one, which takes 3 s if most of its "
        "members are there");
  }
  return absl::UnavailableError(absl::StrFormat(
      "this directory follows, and the one at %s leads: give all of them by --directory", leader_));
}

}  // namespace ckv
