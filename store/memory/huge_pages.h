// Memory in huge pages: 2 MiB a page instead of 4 KiB, so that a kernel that streams rows through
// memory does not stop for an address every 4 rows.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"

namespace ckv {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

enum class PagePolicy : uint8_t {
  kAuto,      // reserved ones if there are enough, else transparent ones, else small ones
  kReserved,  // reserved ones or an error
  kSmall,
};
enum class PageKind : uint8_t {
  kReserved,     // hugetlb: set aside by the operator (vm.nr_hugepages)
  kTransparent,  // the kernel makes huge ones where it can
  kSmall,
};
std::string_view PageKindName(PageKind kind);  // "reserved huge pages"

// Private, zeroed memory that is unmapped at the end. Movable.
class PagedMemory {
 public:
  // Pages are committed as they are touched; reserved ones are taken at once. Less than one huge
  // page is in small ones, unless reserved ones are asked for.
  //   ResourceExhausted   the kernel refuses; of kReserved, says how many pages to reserve.
  static absl::StatusOr<PagedMemory> Map(size_t bytes, PagePolicy policy);
  PagedMemory(PagedMemory&&) = default;
  PagedMemory& operator=(PagedMemory&&) = default;

  // Aligned to a huge page, but for small ones.
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
