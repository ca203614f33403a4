// Memory in huge pages of 2 MiB instead of 4 KiB. A kernel that streams rows through memory then
// does not stop for an address every 4 rows.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"

namespace ckv {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

enum class PagePolicy : uint8_t {
  kAuto,      // reserved huge pages if there are enough, else transparent ones, else small pages
  kReserved,  // reserved huge pages or an error
  kSmall,     // small pages
};
enum class PageKind : uint8_t {
  kReserved,     // hugetlb: set aside by the operator (vm.nr_hugepages)
  kTransparent,  // the kernel makes pages huge where it can
  kSmall,
};
// Returns words for a log line: "reserved huge pages".
std::string_view PageKindName(PageKind kind);

// Private, zeroed memory that is unmapped when this is destroyed. Movable.
class PagedMemory {
 public:
  // Maps memory. Pages are committed when they are first touched; reserved huge pages at once. Less
  // than one huge page is in small pages, unless the policy is kReserved.
  //   ResourceExhausted   the kernel refuses. With kReserved the message says how many pages to
  //                       reserve.
  static absl::StatusOr<PagedMemory> Map(size_t bytes, PagePolicy policy);
  PagedMemory(PagedMemory&&) = default;
  PagedMemory& operator=(PagedMemory&&) = default;

  // The first byte, aligned to a huge page unless pages are small.
  std::byte* base() const { return memory_.get(); }
  PageKind kind() const { return kind_; }

 private:
  struct Unmap {
    size_t bytes = 0;
    void operator()(std::byte* memory) const;
  };
  PagedMemory(std::byte* base, size_t bytes, PageKind kind)
      : memory_(base, Unmap{bytes}), kind_(kind) {}

  std::unique_ptr<std::byte, Unmap> memory_;
  PageKind kind_;
};

}  // namespace ckv
