// Reads and writes structs of callers by their struct_size: the rule of VERSIONS in ckv.h.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv::c {

// The size of T in version 1.0. A version that adds a field to T specializes this with the size
// before the addition.
template <typename T>
inline constexpr size_t kStructBytesMin = sizeof(T);

// Far above the size of any struct of any version. A larger value is an unset size.
inline constexpr size_t kStructBytesMax = 4096;

// Reads the size of a struct that had `least` bytes in version 1.0 and has `known` in this one.
//   InvalidArgument     the struct is NULL, its size is not of any version, or it has nonzero bytes
//                       beyond `known`.
inline absl::Status ReadStructSize(std::string_view name, const void* from, size_t least,
                                   size_t known, size_t& size) {
  if (from == nullptr) return absl::InvalidArgumentError(absl::StrFormat("%s: NULL", name));
  std::memcpy(&size, from, sizeof(size));
  if (size < least || size > kStructBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: struct_size %d is not the size of any version", name, size));
  }
  const auto* const bytes = static_cast<const std::byte*>(from);
  for (size_t i = known; i < size; ++i) {
    if (bytes[i] == std::byte{0}) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d bytes with a field that this library does not support, it supports %d", name, size,
        known));
  }
  return absl::OkStatus();
}

// Checks the size of a struct that will be written later.
//   InvalidArgument     as ReadStructSize.
template <typename T>
absl::Status CheckStruct(std::string_view name, const T* to) {
  size_t size = 0;
  return ReadStructSize(name, to, kStructBytesMin<T>, sizeof(T), size);
}

// Copies a struct from a caller. Fields beyond the caller's size become 0.
template <typename T>
absl::Status TakeStruct(std::string_view name, const T* from, T& to) {
  size_t size = 0;
  CKV_RETURN_IF_ERROR(ReadStructSize(name, from, kStructBytesMin<T>, sizeof(T), size));
  to = T{};
  std::memcpy(static_cast<void*>(&to), from, std::min(size, sizeof(T)));
  return absl::OkStatus();
}

// Copies a struct to a caller, up to the size that the caller has set in it.
template <typename T>
absl::Status GiveStruct(std::string_view name, const T& from, T* to) {
  size_t size = 0;
  CKV_RETURN_IF_ERROR(ReadStructSize(name, to, kStructBytesMin<T>, sizeof(T), size));
  // The caller's struct_size stays unchanged.
  std::memcpy(reinterpret_cast<std::byte*>(to) + sizeof(size),
              reinterpret_cast<const std::byte*>(&from) + sizeof(size),
              std::min(size, sizeof(T)) - sizeof(size));
  return absl::OkStatus();
}

// Calls `take` for each element of an array of structs.
template <typename T, typename Take>
absl::Status ForEachStruct(std::string_view name, const T* first, size_t count, Take&& take) {
  if (count == 0) return absl::OkStatus();
  if (first == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: NULL, with a count of %d", name, count));
  }
  size_t stride = 0;
  const auto* at = reinterpret_cast<const std::byte*>(first);
  for (size_t i = 0; i < count; ++i, at += stride) {
    T element;
    CKV_RETURN_IF_ERROR(TakeStruct(name, reinterpret_cast<const T*>(at), element));
    if (i == 0) stride = element.struct_size;
    if (element.struct_size != stride) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s %d: struct_size %d, that of the first is %d", name, i, element.struct_size, stride));
    }
    CKV_RETURN_IF_ERROR(take(element));
  }
  return absl::OkStatus();
}

}  // namespace ckv::c
