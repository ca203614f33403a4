// The constants of a calibration as a JSON file. `ckvctl calibrate` writes the file. People,
// programs and requesters (RequesterOptions::profile) read it.
//
// A profile is valid for the row widths of one geometry, for one host, and for that host's kernel
// target. Requesters use it only if all three match theirs: see WhyNotOf. The cost of prefill is
// valid for one model only: see HereFor.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/target/target_choice.h"
#include "client/cost/profile.h"
#include "proto/geometry.h"
#include "proto/kernel_target.h"

namespace ckv {

// The constants of one holder over one fabric.
struct LaneProfile {
  std::string holder;
  std::string fabric;  // "shm", "tcp", "verbs"
  FabricConstants constants;
  ComputeCurve compute = {};
  double wire_share = 0;    // Candidate::wire_share
  double burst_bytes = 0;   // Candidate::burst_bytes
  double splice_share = 1;  // Candidate::splice_share
  ColdExchange cold_exchange = {};
  // The holder's kernel target. kUnknown matches any target.
  KernelTargetId kernel_target = KernelTargetId::kUnknown;
  // The elbows of the lane. That is how many routes, or fetches, of this requester can be made at
  // once so that each takes at most twice its time alone. 0 means not measured.
  uint32_t route_elbow = 0;
  uint32_t fetch_elbow = 0;

  friend bool operator==(const LaneProfile&, const LaneProfile&) = default;
};

struct Profile {
  // Describes what was measured, as SubjectOf writes it. The constants apply to nothing else.
  std::string subject;
  RequesterConstants here;
  KernelTargetId kernel_target = KernelTargetId::kUnknown;  // the target of `here`; may be unknown
  std::vector<LaneProfile> lanes;
  // The kernel target chosen on the profile's host, for the next start there (kernel_choice.h). The
  // choice remains valid on the same machine, also after a reboot.
  std::optional<KernelRecord> kernel = {};

  // Returns the lane of this holder and fabric, or null.
  const LaneProfile* Find(std::string_view holder, std::string_view fabric) const;
};

// Returns "GEOMETRY from HOST to HOLDERS, quick". GEOMETRY is Geometry::ToString(), and HOST the
// first 12 characters of `host_identity`. HOLDERS are the holders' names, separated by spaces. The
// last word is "quick" or "full".
std::string SubjectOf(const Geometry& geometry, std::string_view host_identity,
                      std::span<const std::string> holders, bool quick);

// Returns an empty string if `profile` is valid for corpora of `geometry` on the host of
// `host_identity` (HostIdentity(), transport/fabric.h) with kernels of `target`. Otherwise returns
// a human-readable reason, from which a host mismatch is recognisable. The parts are compared as
// follows:
//   geometry  Widths and dtype must match character by character as SubjectOf writes them:
//             "x576 (512+64) bf16 ". All constants are per layer, so layers, model, RoPE and scales
//             may differ: only the time of prefill depends on them.
//   host      Must be the same boot of the same machine. After a reboot, calibrate again.
//   target    Must be the same, unless the profile contains none.
//   holders   Not compared. No constants are used for a holder that the profile does not name.
std::string WhyNotOf(const Profile& profile, const Geometry& geometry,
                     std::string_view host_identity, KernelTargetId target);
// Returns profile.here, without the cost of prefill if it was measured on a model or revision other
// than `geometry`'s.
RequesterConstants HereFor(const Profile& profile, const Geometry& geometry);
// Checks only the host, for callers without a geometry: the subject must contain " from HOST to ".
std::string WhyNotFrom(const Profile& profile, std::string_view host_identity);

// Writes JSON indented by two spaces. The name of every constant ends in its unit.
std::string FormatProfile(const Profile& profile);
// Parses the output of FormatProfile. If here.prefill_per_token_layer_us is missing, it stays
// unset.
//   InvalidArgument     the text is not JSON, or a field is missing, has the wrong type, or is
//                       negative or not finite. Also refused: a shown share above 1, another
//                       version, more than kProfileLaneCountMax lanes, or more than
//                       ComputeCurve::kAnchorCountMax anchors. The message names the field.
absl::StatusOr<Profile> ParseProfile(std::string_view text);
inline constexpr size_t kProfileLaneCountMax = 4096;

// Writes the file as an OutputFile does (store/formats/output_file.h), whatever `path` is.
//   Errors as OutputFile.
absl::Status WriteProfile(const std::string& path, const Profile& profile);
// Reads and parses the file.
//   NotFound            there is no file at `path`.
//   InvalidArgument     as ParseProfile, with the path, or the file exceeds 16 MiB.
absl::StatusOr<Profile> ReadProfile(const std::string& path);

}  // namespace ckv
