// The backends under conformance test: this processor's, and one that is as late and as closed as
// the interface allows. A device's backend is one more case here: how to make it, and how to fill
// and read its memory.

#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attention/backend.h"
#include "gtest/gtest.h"
#include "tests/support/deferred_backend.h"

namespace ckv::test {

class BackendUnderTest;

// Memory of one kind, with copies in and out.
class Placed {
 public:
  Placed(BackendUnderTest* under, MemoryKind kind, size_t bytes);
  Placed(BackendUnderTest* under, MemoryKind kind, std::span<const std::byte> bytes)
      : Placed(under, kind, bytes.size()) {
    Write(bytes);
  }

  template <typename T = std::byte>
  T* data() const {
    return reinterpret_cast<T*>(data_);
  }
  size_t size() const { return size_; }
  MemoryKind kind() const { return kind_; }
  void Write(std::span<const std::byte> bytes);
  std::vector<std::byte> Read() const;

 private:
  BackendUnderTest* under_;
  MemoryKind kind_;
  size_t size_;
  std::vector<std::byte> host_;
  BackendMemory memory_;
  std::byte* data_;
};

class BackendUnderTest {
 public:
  virtual ~BackendUnderTest() = default;
  virtual Backend& backend() = 0;
  // Whether its results have the bits of the functions in the headers of attention/. If not, they
  // are compared with f64 only.
  virtual bool has_cpu_bits() const { return true; }
  // Whether memory of the kind is the test's own, and not the backend's.
  virtual bool IsPlain(MemoryKind kind) const { return kind == MemoryKind::kHost; }
  // Copies to or from its memory of a device.
  virtual void Copy(std::byte* to, std::span<const std::byte> from) {
    std::memcpy(to, from.data(), from.size());
  }
  // Returns a stream like an engine's, for Backend::StreamOver, valid as long as this object. Null
  // if the backend has none.
  virtual void* NewNative() { return nullptr; }
  // Puts a copy on that stream. Host memory `from` must stay valid until it is done; its size is
  // even.
  virtual void CopyOn(void* /*native*/, const Placed& /*to*/, std::span<const std::byte> /*from*/) {
  }
};

inline Placed::Placed(BackendUnderTest* under, MemoryKind kind, size_t bytes)
    : under_(under), kind_(kind), size_(bytes) {
  if (under->IsPlain(kind)) {
    host_.resize(bytes + 1);  // never null
    data_ = host_.data();
    return;
  }
  auto memory = under->backend().Allocate(kind, bytes);
  CKV_CHECK(memory.ok());
  memory_ = *std::move(memory);
  data_ = memory_.data();
}

inline void Placed::Write(std::span<const std::byte> bytes) {
  CKV_CHECK(bytes.size() <= size_);
  if (!bytes.empty()) under_->Copy(data_, bytes);
}

inline std::vector<std::byte> Placed::Read() const {
  std::vector<std::byte> bytes(size_);
  if (size_ > 0) under_->Copy(bytes.data(), {data_, size_});
  return bytes;
}

class CpuUnderTest final : public BackendUnderTest {
 public:
  Backend& backend() override { return *Backend::Cpu(); }
  bool IsPlain(MemoryKind kind) const override { return kind != MemoryKind::kDevice; }
};

class DeferredUnderTest : public BackendUnderTest {
 public:
  explicit DeferredUnderTest(const BackendReach& reach = DeferredBackend::ReachAll())
      : backend_(reach) {}
  Backend& backend() override { return backend_; }
  void Copy(std::byte* to, std::span<const std::byte> from) override { backend_.Copy(to, from); }
  void* NewNative() override {
    auto stream = backend_.NewStream(1);
    CKV_CHECK(stream.ok());
    return natives_.emplace_back(*std::move(stream)).get();
  }
  void CopyOn(void* native, const Placed& to, std::span<const std::byte> from) override {
    const auto bytes = static_cast<uint32_t>(from.size());
    // Every one of these backends reads this memory. It must stay valid until the work is done.
    BackendMemory& staged = staged_.emplace_back(*backend_.Allocate(MemoryKind::kPinned, bytes));
    backend_.Copy(staged.data(), from);
    CKV_CHECK(backend_
                  .Rotate(RopeRotation(RopeParams(), 0, 0),
                          {staged.data(), 1, bytes, MemoryKind::kPinned}, bytes,
                          {to.data(), to.kind()}, *static_cast<ComputeStream*>(native))
                  .ok());
  }

 private:
  DeferredBackend backend_;
  std::vector<BackendMemory> staged_;
  std::vector<std::unique_ptr<ComputeStream>> natives_;
};

// The same, with rows and partials on the device only.
class ClosedUnderTest final : public DeferredUnderTest {
 public:
  ClosedUnderTest() : DeferredUnderTest(Reach()) {}

 private:
  static BackendReach Reach() {
    const MemoryKinds device = {MemoryKind::kDevice};
    const MemoryKinds pinned = {MemoryKind::kPinned, MemoryKind::kDevice};
    BackendReach reach = DeferredBackend::ReachAll();
    reach.queries = reach.merged = reach.scattered_from = pinned;
    reach.rows = reach.partials = reach.parts = reach.scattered_to = device;
    return reach;
  }
};

// The same, with host memory out of reach, as a card's is.
class PinnedUnderTest final : public DeferredUnderTest {
 public:
  PinnedUnderTest() : DeferredUnderTest(DeferredBackend::ReachPinned()) {}
};

struct BackendCase {
  const char* name;
  std::unique_ptr<BackendUnderTest> (*make)();
};

template <typename Under>
BackendCase CaseOf(const char* name) {
  return {name, [] { return std::unique_ptr<BackendUnderTest>(std::make_unique<Under>()); }};
}

inline auto AllBackends() {
  return testing::Values(CaseOf<CpuUnderTest>("cpu"), CaseOf<DeferredUnderTest>("deferred"),
                         CaseOf<ClosedUnderTest>("closed"), CaseOf<PinnedUnderTest>("pinned"));
}

inline std::string CaseName(const testing::TestParamInfo<BackendCase>& test) {
  return test.param.name;
}

class BackendTest : public testing::TestWithParam<BackendCase> {
 protected:
  std::unique_ptr<ComputeStream> NewStream(uint32_t thread_count = 1) {
    auto stream = backend_.NewStream(thread_count);
    CKV_CHECK(stream.ok());
    return *std::move(stream);
  }
  // One of the kinds that an operand may be of.
  MemoryKind Pick(MemoryKinds reached) {
    MemoryKind kind;
    do {
      kind = static_cast<MemoryKind>(rng_() % 3);
    } while (!reached.Has(kind));
    return kind;
  }
  Placed Place(MemoryKinds reached, std::span<const std::byte> bytes) {
    return Placed(under_.get(), Pick(reached), bytes);
  }
  Placed Place(MemoryKinds reached, size_t bytes) {
    return Placed(under_.get(), Pick(reached), bytes);
  }

  const std::unique_ptr<BackendUnderTest> under_ = GetParam().make();
  Backend& backend_ = under_->backend();
  const BackendReach& reach_ = backend_.reach();
  std::mt19937 rng_{1};
  const std::unique_ptr<ComputeStream> stream_ = NewStream();
};

}  // namespace ckv::test
