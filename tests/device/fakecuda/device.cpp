// A simulated CUDA device for a CPU-only build of torch.
//
// A boxed kernel at the dispatch key CUDA runs the CPU kernel on the same
// memory. To torch the tensors are CUDA tensors: mixed devices raise,
// autocast('cuda') casts, generators are the device's, memory runs out.
// Copies are asynchronous in the most hostile order that CUDA allows: pinned
// memory holds 0xFF until the host waits for the stream of its copy, and a
// copy on a side stream reads its source as late as the order permits.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <unordered_map>
#include <vector>

namespace {

using at::Tensor;
using c10::Device;
using c10::DeviceIndex;
using c10::Storage;

constexpr int MAX_DEVICES = 16;

int number_of_devices() {
  static int n = [] {
    const char* text = std::getenv("FAKECUDA_DEVICES");
    int given = text ? std::atoi(text) : 1;
    return given < 0 ? 0 : (given > MAX_DEVICES ? MAX_DEVICES : given);
  }();
  return n;
}

// ---------------------------------------------------------------- state
using Callback = void (*)(const char* kind, const char* name, int64_t amount);

constexpr int STREAMS = 64;

// A copy to pinned memory that the host has not waited for.
struct Pending {
  uint64_t seq;
  int stream;
  Storage target, source;
  char* to;
  const char* from;
  size_t size;
  // What is read, and what the source was when the copy was queued.
  std::vector<char> bytes, queued;
  bool is_read = false;

  void read();
};

// A copy from pinned memory: its source must not change before a wait.
struct Upload {
  Storage source;
  const char* from;
  std::vector<char> bytes;
};

struct State {
  std::mutex lock;
  std::vector<Pending> pending;
  std::vector<Upload> uploads;
  std::map<std::string, int64_t> launches;
  std::atomic<uint64_t> seq{0};
  std::atomic<int64_t> kernels{0}, syncs{0}, races{0}, refused{0};
  std::atomic<bool> counting{false}, tracing{false};
  std::atomic<bool> broken{false}, hung{false};
  // A kernel has failed, which the next wait of the host finds out.
  std::atomic<bool> failing{false}, fails_late{false};
  uint64_t last[MAX_DEVICES * STREAMS] = {};
  // By waiting and awaited stream: up to which number they are in order.
  std::map<std::pair<int, int>, uint64_t> waited;
  std::string broken_words;
  int broken_code = 710;
  std::atomic<int64_t> break_in{-1};
  int64_t allocated[MAX_DEVICES] = {}, peak[MAX_DEVICES] = {},
          limit[MAX_DEVICES] = {};
  int64_t ooms[MAX_DEVICES] = {};
  int64_t pinned = 0, pinned_peak = 0;
  bool context[MAX_DEVICES] = {};
  std::map<const char*, size_t> pinned_ranges;
  Callback callback = nullptr;
};

State& state() {
  static State* s = new State;
  return *s;
}

void Pending::read() {
  if (!is_read) {
    bytes.assign(from, from + size);
    // Somebody has changed it without waiting for this stream.
    if (!queued.empty() && bytes != queued) state().races++;
  }
  is_read = true;
}

thread_local DeviceIndex current_device = 0;
thread_local int current_stream[MAX_DEVICES] = {};

// Streams of all devices in one row; that of number 0 is the default.
int stream_of(int device) { return device * STREAMS + current_stream[device]; }

void notify(const char* kind, const char* name, int64_t amount) {
  if (state().callback) state().callback(kind, name, amount);
}

void check_alive() {
  auto& s = state();
  if (s.broken) {
    s.refused++;
    std::string words;
    int code;
    {
      std::lock_guard<std::mutex> hold(s.lock);
      words = s.broken_words;
      code = s.broken_code;
    }
    throw c10::AcceleratorError(
        {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, code,
        "CUDA error: " + words +
            "\nCUDA kernel errors might be asynchronously reported at some "
            "other API call, so the stacktrace below might "
            "be incorrect.\nFor debugging consider passing "
            "CUDA_LAUNCH_BLOCKING=1\n");
  }
}

void touch(int device) { state().context[device] = true; }

// Whether work of another stream is done once this stream has come so far.
bool covers(int stream, uint64_t seq, const Pending& one) {
  if (one.stream == stream) return one.seq <= seq;
  auto found = state().waited.find({stream, one.stream});
  return found != state().waited.end() && one.seq <= found->second;
}

void finish_uploads(std::vector<Upload>& done) {
  auto& s = state();
  for (auto& one : s.uploads)
    if (std::memcmp(one.from, one.bytes.data(), one.bytes.size()) != 0)
      s.races++;
  done.swap(s.uploads);
}

// The host has waited for a stream up to this number.
void arrive(int stream, uint64_t seq) {
  auto& s = state();
  // Freed after the lock, which freeing a source takes as well.
  std::vector<Pending> left, done;
  std::vector<Upload> uploaded;
  std::lock_guard<std::mutex> hold(s.lock);
  for (auto& one : s.pending) {
    if (!covers(stream, seq, one)) {
      left.push_back(std::move(one));
      continue;
    }
    one.read();
    std::memcpy(one.to, one.bytes.data(), one.bytes.size());
    done.push_back(std::move(one));
  }
  s.pending.swap(left);
  finish_uploads(uploaded);
}

void arrive_all(int device) {
  for (int i = 0; i < STREAMS; i++) arrive(device * STREAMS + i, UINT64_MAX);
}

// What a stream does from now on comes after the work of another one.
void stream_waits(int waiting, int awaited, uint64_t seq) {
  auto& s = state();
  std::lock_guard<std::mutex> hold(s.lock);
  auto order = [&](int other, uint64_t number) {
    auto& known = s.waited[{waiting, other}];
    known = std::max(known, number);
  };
  std::vector<std::pair<int, uint64_t>> inherited;
  for (auto& [pair, number] : s.waited)
    if (pair.first == awaited) inherited.emplace_back(pair.second, number);
  for (auto& [other, number] : inherited) order(other, number);
  order(awaited, seq);
  for (auto& one : s.pending)
    if (covers(waiting, 0, one)) one.read();
}

bool is_done(int stream, uint64_t seq) {
  auto& s = state();
  if (s.hung) return false;
  std::lock_guard<std::mutex> hold(s.lock);
  for (auto& one : s.pending)
    if (covers(stream, seq, one)) return false;
  return true;
}

// The host waits for a stream, or for all of a device if it is negative.
void host_waits(const char* name, int64_t bytes, int device, int stream) {
  auto& s = state();
  if (s.failing) s.broken = true;
  check_alive();
  touch(device);
  // A kernel that never ends, as a collective that another rank does not
  // join.
  while (s.hung) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  if (s.counting) {
    s.syncs++;
    notify("sync", name, bytes);
  }
  if (stream < 0)
    arrive_all(device);
  else
    arrive(stream, UINT64_MAX);
}

void host_waits(const char* name, int64_t bytes, int device) {
  host_waits(name, bytes, device, stream_of(device));
}

void launch(const std::string& name, int64_t number, int device) {
  auto& s = state();
  check_alive();
  touch(device);
  if (s.counting) {
    s.kernels += number;
    {
      std::lock_guard<std::mutex> hold(s.lock);
      s.launches[name] += number;
    }
    if (s.tracing) notify("kernel", name.c_str(), number);
  }
  s.last[stream_of(device)] = ++s.seq;
  if (s.break_in >= 0 && s.break_in-- == 0) {
    if (s.fails_late)
      s.failing = true;
    else
      s.broken = true;
  }
}

// ---------------------------------------------------------------- memory
void account(int device, int64_t bytes) {
  auto& s = state();
  std::lock_guard<std::mutex> hold(s.lock);
  if (bytes > 0 && s.limit[device] > 0 &&
      s.allocated[device] + bytes > s.limit[device]) {
    s.ooms[device]++;
    std::ostringstream words;
    words << "CUDA out of memory. Tried to allocate " << bytes / 1048576.0
          << " MiB. GPU " << device << " has a total capacity of "
          << s.limit[device] / 1048576.0 << " MiB of which "
          << (s.limit[device] - s.allocated[device]) / 1048576.0
          << " MiB is free.";
    throw c10::OutOfMemoryError(
        {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, words.str());
  }
  s.allocated[device] += bytes;
  if (s.allocated[device] > s.peak[device])
    s.peak[device] = s.allocated[device];
}

struct Owner {
  Storage keep;
  void* raw;
  int device;
  int64_t bytes;
};

void free_owner(void* context) {
  auto* owner = static_cast<Owner*>(context);
  account(owner->device, -owner->bytes);
  std::free(owner->raw);
  delete owner;
}

struct DeviceMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    int device = current_device;
    touch(device);
    account(device, n);
    void* raw = n ? std::aligned_alloc(64, (n + 63) / 64 * 64) : nullptr;
    if (raw) std::memset(raw, 0xFF, n);
    return {raw, new Owner{Storage(), raw, device, int64_t(n)}, &free_owner,
            Device(c10::kCUDA, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t n) const override {
    default_copy_data(to, from, n);
  }
};

DeviceMemory* device_memory() {
  static auto* one = new DeviceMemory;
  return one;
}

size_t power_of_two(size_t n) {
  size_t size = 1;
  while (size < n) size *= 2;
  return size;
}

void free_pinned(void* pointer) {
  auto& s = state();
  {
    std::lock_guard<std::mutex> hold(s.lock);
    auto found = s.pinned_ranges.find(static_cast<const char*>(pointer));
    if (found != s.pinned_ranges.end()) {
      s.pinned -= power_of_two(found->second);
      s.pinned_ranges.erase(found);
    }
  }
  std::free(pointer);
}

struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    check_alive();
    auto& s = state();
    size_t size = n ? n : 1;
    char* raw =
        static_cast<char*>(std::aligned_alloc(64, (size + 63) / 64 * 64));
    std::memset(raw, 0xFF, size);
    std::lock_guard<std::mutex> hold(s.lock);
    s.pinned_ranges[raw] = size;
    s.pinned +=
        power_of_two(size);  // what torch's caching host allocator takes
    s.pinned_peak = std::max(s.pinned_peak, s.pinned);
    return {raw, raw, &free_pinned, Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, std::size_t n) const override {
    default_copy_data(to, from, n);
  }
};

PinnedMemory* pinned_memory() {
  static auto* one = new PinnedMemory;
  return one;
}

bool is_pinned(const void* data) {
  auto& s = state();
  std::lock_guard<std::mutex> hold(s.lock);
  auto next = s.pinned_ranges.upper_bound(static_cast<const char*>(data));
  if (next == s.pinned_ranges.begin()) return false;
  --next;
  return static_cast<const char*>(data) < next->first + next->second;
}

// ---------------------------------------------------------------- random
// numbers Like CUDA's: a seed and an offset, 16 bytes.
struct DeviceGenerator final : c10::GeneratorImpl {
  explicit DeviceGenerator(DeviceIndex index)
      : GeneratorImpl(Device(c10::kCUDA, index),
                      c10::DispatchKeySet(c10::DispatchKey::CUDA)) {}
  void set_current_seed(uint64_t value) override {
    seed_ = value;
    offset_ = 0;
  }
  void set_offset(uint64_t value) override { offset_ = value; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    auto value = c10::detail::getNonDeterministicRandom(false);
    set_current_seed(value);
    return value;
  }
  void set_state(const c10::TensorImpl& given) override {
    TORCH_CHECK(
        given.device().is_cpu() && given.dtype() == c10::ScalarType::Byte,
        "RNG state must be a torch.ByteTensor");
    TORCH_CHECK(given.numel() == 16, "RNG state is wrong size");
    auto* from = static_cast<const char*>(given.data());
    std::memcpy(&seed_, from, 8);
    std::memcpy(&offset_, from + 8, 8);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto tensor =
        at::empty({16}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
    auto* to = static_cast<char*>(tensor.mutable_data_ptr());
    std::memcpy(to, &seed_, 8);
    std::memcpy(to + 8, &offset_, 8);
    return tensor.getIntrusivePtr();
  }
  uint64_t next() {
    uint64_t x =
        (seed_ + 0x632BE59BD9B4E019ull) * 0x9E3779B97F4A7C15ull + offset_;
    x ^= x >> 31;
    offset_ += 4;
    return x;
  }

 private:
  DeviceGenerator* clone_impl() const override {
    auto* copy = new DeviceGenerator(device().index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

const at::Generator& generator_of(DeviceIndex index) {
  static auto* all = [] {
    auto* made = new std::vector<at::Generator>;
    for (int i = 0; i < MAX_DEVICES; i++)
      made->push_back(at::make_generator<DeviceGenerator>(DeviceIndex(i)));
    return made;
  }();
  return all->at(index < 0 ? current_device : index);
}

// The CPU kernels draw from the CPU's generator, which has the numbers of a
// device for that time only.
struct BorrowedGenerator {
  explicit BorrowedGenerator(DeviceGenerator* from)
      : own(at::detail::getDefaultCPUGenerator()) {
    saved = own.get_state();
    own.set_current_seed(from->next());
  }
  ~BorrowedGenerator() { own.set_state(saved); }
  at::Generator own;
  Tensor saved;
};

// ---------------------------------------------------------------- kernels
struct Call {
  std::unordered_map<c10::StorageImpl*, Storage> to_cpu;
  std::unordered_map<c10::StorageImpl*, Storage> from_cpu;
  std::unordered_map<c10::TensorImpl*, Tensor> originals;
  std::vector<Tensor> keep;
  int device = -1;

  void on(const Tensor& tensor, const char* name) {
    int index = tensor.device().index();
    if (device < 0) device = index;
    TORCH_CHECK(device == index,
                "Expected all tensors to be on the same device, but found at "
                "least two devices, cuda:",
                device, " and cuda:", index, "! (", name, ")");
  }

  Tensor as_cpu(const Tensor& tensor) {
    auto storage = tensor.storage();
    auto& there = to_cpu[storage.unsafeGetStorageImpl()];
    if (!there) {
      auto* keep_alive = new Storage(storage);
      c10::DataPtr pointer(
          storage.mutable_data(), keep_alive,
          [](void* one) { delete static_cast<Storage*>(one); },
          Device(c10::kCPU));
      there = Storage(Storage::use_byte_size_t(), storage.nbytes(),
                      std::move(pointer), c10::GetAllocator(c10::kCPU), true);
      from_cpu[there.unsafeGetStorageImpl()] = storage;
    }
    auto impl = c10::make_intrusive<c10::TensorImpl>(
        Storage(there), c10::DispatchKeySet(c10::DispatchKey::CPU),
        tensor.dtype());
    impl->set_storage_offset(tensor.storage_offset());
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
    auto lent = Tensor(std::move(impl));
    originals[lent.unsafeGetTensorImpl()] = tensor;
    keep.push_back(lent);
    return lent;
  }

  Storage adopt(const Storage& storage) {
    auto& there = from_cpu[storage.unsafeGetStorageImpl()];
    if (!there) {
      auto bytes = int64_t(storage.nbytes());
      account(device, bytes);
      auto* owner = new Owner{storage, nullptr, device, bytes};
      c10::DataPtr pointer(storage.mutable_data(), owner, &free_owner,
                           Device(c10::kCUDA, device));
      there = Storage(Storage::use_byte_size_t(), storage.nbytes(),
                      std::move(pointer), device_memory(), true);
    }
    return there;
  }

  Tensor as_cuda(const Tensor& tensor, bool& is_new) {
    if (!tensor.defined()) return tensor;
    auto found = originals.find(tensor.unsafeGetTensorImpl());
    if (found != originals.end()) {
      auto& original = found->second;
      auto* impl = original.unsafeGetTensorImpl();
      auto now = tensor.storage();
      if (from_cpu.count(now.unsafeGetStorageImpl()) == 0 ||
          now.nbytes() != original.storage().nbytes() ||
          now.data() != original.storage().data()) {
        from_cpu.erase(now.unsafeGetStorageImpl());
        auto* own = original.storage().unsafeGetStorageImpl();
        auto fresh = adopt(now);
        // The storage itself stays: others may hold it.
        own->set_data_ptr_noswap(c10::DataPtr(
            fresh.mutable_data(), new Storage(fresh),
            [](void* one) { delete static_cast<Storage*>(one); },
            fresh.device()));
        own->set_nbytes(fresh.nbytes());
      }
      if (impl->sizes() != tensor.sizes() ||
          impl->strides() != tensor.strides() ||
          impl->storage_offset() != tensor.storage_offset()) {
        impl->set_storage_offset(tensor.storage_offset());
        impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
      }
      is_new = true;
      return original;
    }
    bool is_view = from_cpu.count(tensor.storage().unsafeGetStorageImpl()) > 0;
    if (!is_view) is_new = true;
    auto impl = c10::make_intrusive<c10::TensorImpl>(
        adopt(tensor.storage()), c10::DispatchKeySet(c10::DispatchKey::CUDA),
        tensor.dtype());
    impl->set_storage_offset(tensor.storage_offset());
    impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
    return Tensor(std::move(impl));
  }
};

bool starts_with(const std::string& text, const char* with) {
  return text.rfind(with, 0) == 0;
}

bool is_free(const std::string& name) {
  static const std::set<std::string> names = {
      "aten::empty",     "aten::empty_strided", "aten::set_",
      "aten::resize_",   "aten::record_stream", "aten::_fused_sdp_choice",
      "aten::is_set_to", "aten::is_pinned"};
  return names.count(name) > 0;
}

// Kernels of multi-tensor functions: torch's MultiTensorApply takes so many
// tensors at once.
int64_t kernels_of_lists(size_t tensors, size_t lists) {
  static const int64_t most[] = {110, 64, 48, 36, 30};
  int64_t at_once = most[std::min<size_t>(lists ? lists - 1 : 0, 4)];
  return std::max<int64_t>(1, (int64_t(tensors) + at_once - 1) / at_once);
}

bool is_bad_index(const c10::Error& error) {
  std::string words = error.what_without_backtrace();
  return words.find("out of bounds") != std::string::npos ||
         words.find("out of range") != std::string::npos;
}

void break_device(const char* words, int code) {
  auto& s = state();
  {
    std::lock_guard<std::mutex> hold(s.lock);
    s.broken_words = words;
    s.broken_code = code;
  }
  s.broken = true;
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto& name = schema.operator_name().name;
  const size_t number = schema.arguments().size();
  const size_t begin = stack->size() - number;
  Call call;
  at::Generator generator;
  bool on_cpu = false;
  size_t lists = 0, longest = 0;
  bool bool_index = false, mixed = false;

  for (size_t i = 0; i < number; i++) {
    auto& value = (*stack)[begin + i];
    if (value.isTensor()) {
      const auto& tensor = value.toTensor();
      if (!tensor.defined()) continue;
      if (tensor.is_cuda())
        call.on(tensor, name.c_str());
      else if (tensor.is_cpu() && tensor.dim() > 0)
        on_cpu = true;
    } else if (value.isTensorList() || value.isList()) {
      size_t count = 0;
      std::optional<at::ScalarType> kind;
      auto look = [&](const Tensor& tensor) {
        if (!tensor.defined()) return;
        count++;
        if (!kind) kind = tensor.scalar_type();
        if (*kind != tensor.scalar_type()) mixed = true;
        if (tensor.is_cuda()) {
          call.on(tensor, name.c_str());
          if (tensor.scalar_type() == at::kBool ||
              tensor.scalar_type() == at::kByte)
            bool_index = true;
        } else if (tensor.is_cpu() && tensor.dim() > 0 &&
                   name != "aten::index" &&
                   !starts_with(name, "aten::index_put") &&
                   name != "aten::_index_put_impl_")
          on_cpu = true;
      };
      if (value.isTensorList())
        for (const Tensor& tensor : value.toTensorList()) look(tensor);
      else
        for (const c10::IValue& one : value.toListRef())
          if (one.isTensor()) look(one.toTensor());
      if (count) lists++;
      longest = std::max(longest, count);
    } else if (value.isDevice() && value.toDevice().is_cuda()) {
      auto index = value.toDevice().index();
      if (call.device < 0) call.device = index < 0 ? current_device : index;
    } else if (value.isGenerator()) {
      generator = value.toGenerator();
    }
  }
  if (call.device < 0) call.device = current_device;
  TORCH_CHECK(!on_cpu,
              "Expected all tensors to be on the same device, but found at "
              "least two devices, cuda:",
              call.device, " and cpu! (when checking the arguments of ", name,
              ")");
  if (!is_free(name)) check_alive();

  for (size_t i = 0; i < number; i++) {
    auto& value = (*stack)[begin + i];
    if (value.isTensor()) {
      const auto& tensor = value.toTensor();
      if (tensor.defined() && tensor.is_cuda()) value = call.as_cpu(tensor);
    } else if (value.isTensorList()) {
      c10::List<Tensor> lent;
      for (const Tensor& tensor : value.toTensorList())
        lent.push_back(tensor.defined() && tensor.is_cuda()
                           ? call.as_cpu(tensor)
                           : tensor);
      value = c10::IValue(lent);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> lent;
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorList())
        lent.push_back(tensor.has_value() && tensor->defined() &&
                               tensor->is_cuda()
                           ? std::optional<Tensor>(call.as_cpu(*tensor))
                           : tensor);
      value = c10::IValue(lent);
    } else if (value.isDevice() && value.toDevice().is_cuda()) {
      value = c10::IValue(Device(c10::kCPU));
    } else if (value.isGenerator()) {
      value = c10::IValue();
    }
  }
  {
    std::optional<BorrowedGenerator> borrowed;
    if (generator.defined() || op.hasTag(at::Tag::nondeterministic_seeded)) {
      auto from = generator.defined() ? generator
                                      : generator_of(DeviceIndex(call.device));
      TORCH_CHECK(
          from.device().is_cuda(),
          "Expected a 'cuda' device type for generator but found 'cpu'");
      borrowed.emplace(
          static_cast<DeviceGenerator*>(from.unsafeGetGeneratorImpl()));
    }
    try {
      op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
    } catch (const c10::Error& error) {
      // A CUDA kernel cannot raise: it asserts.
      if (!is_bad_index(error)) throw;
      break_device("device-side assert triggered", 710);
      check_alive();
    }
  }
  bool is_new = schema.returns().empty();
  const size_t returned = stack->size() - schema.returns().size();
  for (size_t i = returned; i < stack->size(); i++) {
    auto& value = (*stack)[i];
    if (value.isTensor()) {
      value = call.as_cuda(value.toTensor(), is_new);
    } else if (value.isTensorList()) {
      c10::List<Tensor> given;
      for (const Tensor& tensor : value.toTensorList())
        given.push_back(call.as_cuda(tensor, is_new));
      value = c10::IValue(given);
    } else {
      is_new = true;
    }
  }
  if (op.hasTag(at::Tag::data_dependent_output) ||
      op.hasTag(at::Tag::dynamic_output_shape) ||
      (bool_index &&
       (name == "aten::index" || starts_with(name, "aten::index_put") ||
        name == "aten::_index_put_impl_")) ||
      name == "aten::equal" || name == "aten::_local_scalar_dense")
    host_waits(name.c_str(), 0, call.device);
  if (is_new && !is_free(name)) {
    bool many = starts_with(name, "aten::_foreach") ||
                starts_with(name, "aten::_fused_") ||
                starts_with(name, "aten::_amp_foreach");
    // Lists of several dtypes take torch's slow path, one kernel for each
    // tensor.
    if (many)
      launch(name,
             mixed && starts_with(name, "aten::_foreach")
                 ? int64_t(longest)
                 : kernels_of_lists(longest, lists),
             call.device);
    else
      launch(name, 1, call.device);
  }
}

Tensor& copy(Tensor& self, const Tensor& src, bool non_blocking) {
  if (self.is_same(src)) return self;
  if (self.numel() == 0 && src.numel() == 0) return self;
  if (self.is_cuda() && src.is_cuda()) {
    Call to, from;
    to.device = self.device().index();
    from.device = src.device().index();
    check_alive();
    auto target = to.as_cpu(self);
    // The same storage has to stay one, for overlapping views.
    auto source = self.storage().is_alias_of(src.storage()) ? to.as_cpu(src)
                                                            : from.as_cpu(src);
    target.copy_(source);
    launch("aten::copy_", 1, to.device);
    return self;
  }
  Call call;
  const bool down = src.is_cuda();
  const auto& there = down ? src : self;
  call.device = there.device().index();
  check_alive();
  touch(call.device);
  auto lent = call.as_cpu(there);
  const auto& host = down ? self : src;
  const bool straight = self.sizes() == src.sizes() &&
                        self.strides() == src.strides() &&
                        self.scalar_type() == src.scalar_type() &&
                        self.is_non_overlapping_and_dense();
  const bool pinned = is_pinned(host.const_data_ptr());
  const auto bytes = int64_t(self.nbytes());
  auto& s = state();
  if (s.counting && s.tracing)
    notify(down ? "down" : "up", pinned ? "pinned" : "pageable", bytes);
  if (s.counting) {
    std::lock_guard<std::mutex> hold(s.lock);
    s.launches[down ? "memcpy_d2h" : "memcpy_h2d"]++;
    s.launches[down ? "bytes_d2h" : "bytes_h2d"] += bytes;
  }
  if (down && non_blocking && pinned && straight) {
    Pending one;
    one.stream = stream_of(call.device);
    one.seq = s.last[one.stream] = ++s.seq;
    one.target = self.storage();
    one.source = src.storage();
    one.to = static_cast<char*>(self.mutable_data_ptr());
    one.from = static_cast<const char*>(lent.const_data_ptr());
    one.size = size_t(bytes);
    const int base = call.device * STREAMS;
    std::lock_guard<std::mutex> hold(s.lock);
    if (one.stream == base)
      one.read();
    else if (s.waited[{one.stream, base}] < s.last[base])
      s.races++;
    else
      one.queued.assign(one.from, one.from + one.size);
    std::memset(one.to, 0xFF, bytes);
    // Two copies to one place arrive in their order.
    s.pending.push_back(std::move(one));
    return self;
  }
  if (down) {
    const_cast<Tensor&>(self).copy_(lent);
    host_waits(pinned ? "copy_d2h_pinned" : "copy_d2h_pageable", bytes,
               call.device);
    return self;
  }
  // The device does one thing after the other: what it is still to write to
  // this memory comes first.
  if (pinned) arrive(stream_of(call.device), UINT64_MAX);
  lent.copy_(src);
  if (non_blocking && pinned && straight) {
    Upload one;
    one.source = src.storage();
    one.from = static_cast<const char*>(src.const_data_ptr());
    one.bytes.assign(one.from, one.from + bytes);
    std::lock_guard<std::mutex> hold(s.lock);
    s.uploads.push_back(std::move(one));
  } else if (non_blocking) {
    if (s.counting) notify("maybe_sync", "copy_h2d_pageable", bytes);
  } else {
    host_waits(pinned ? "copy_h2d_pinned" : "copy_h2d_pageable", bytes,
               call.device);
  }
  return self;
}

int64_t choose_attention(const Tensor&, const Tensor&, const Tensor&,
                         const std::optional<Tensor>&, double, bool,
                         std::optional<double>, bool) {
  return 0;  // the decomposition
}

void record_stream(Tensor&, c10::Stream) {}

Tensor& set_storage(Tensor& self, Storage source, c10::SymInt offset,
                    c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset.expect_int());
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  if (stride.empty() && !sizes.empty())
    impl->set_sizes_contiguous(sizes);
  else
    impl->set_sizes_and_strides(sizes, C10_AS_INTARRAYREF_SLOW(stride));
  return self;
}

Tensor& set_whole(Tensor& self, Storage source) {
  int64_t length = source.nbytes() / self.dtype().itemsize();
  return set_storage(self, std::move(source), 0,
                     std::vector<c10::SymInt>{length},
                     std::vector<c10::SymInt>{});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(),
                     source.sym_sizes(), source.sym_strides());
}

const Tensor& resize(const Tensor& self, c10::SymIntArrayRef size,
                     std::optional<at::MemoryFormat> format) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto* impl = self.unsafeGetTensorImpl();
  int64_t elements = 1;
  for (auto one : sizes) elements *= one;
  const size_t needed =
      (impl->storage_offset() + elements) * self.dtype().itemsize();
  auto* storage = self.storage().unsafeGetStorageImpl();
  if (storage->nbytes() < needed) {
    auto before = current_device;
    current_device = self.device().index();
    c10::DataPtr grown = device_memory()->allocate(needed);
    current_device = before;
    if (storage->nbytes())
      std::memcpy(grown.get(), storage->data(), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(grown));
    storage->set_nbytes(needed);
  }
  impl->set_sizes_contiguous(sizes);
  if (format.has_value()) impl->empty_tensor_restride(*format);
  return self;
}

// ---------------------------------------------------------------- what torch
// asks a backend for A place in the work of a stream.
struct Mark {
  int stream;
  uint64_t seq;
};

int key(const c10::Stream& given) {
  return given.device_index() * STREAMS + int(given.id());
}

int next_stream() {
  static std::atomic<int> number{0};
  return 1 + number++ % (STREAMS - 1);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  Device exchangeDevice(Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  Device getDevice() const override {
    return Device(c10::kCUDA, current_device);
  }
  void setDevice(Device device) const override {
    if (device.index() >= 0) current_device = device.index();
  }
  void uncheckedSetDevice(Device device) const noexcept override {
    if (device.index() >= 0) current_device = device.index();
  }
  static c10::Stream stream(Device device, int number) {
    return c10::Stream(c10::Stream::UNSAFE, device, number);
  }
  c10::Stream getStream(Device device) const override {
    return stream(device, current_stream[device.index()]);
  }
  c10::Stream getDefaultStream(Device device) const override {
    return stream(device, 0);
  }
  c10::Stream getStreamFromGlobalPool(Device device, bool) const override {
    return stream(device, next_stream());
  }
  c10::Stream getNewStream(Device device, int) const override {
    return stream(device, next_stream());
  }
  c10::Stream exchangeStream(c10::Stream given) const override {
    auto before = getStream(given.device());
    current_stream[given.device_index()] = int(given.id());
    return before;
  }
  DeviceIndex deviceCount() const noexcept override {
    return DeviceIndex(number_of_devices());
  }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    delete static_cast<Mark*>(event);
  }
  void record(void** event, const c10::Stream& given, const DeviceIndex,
              const c10::EventFlag) const override {
    if (!*event) *event = new Mark;
    *static_cast<Mark*>(*event) = {key(given), state().seq};
  }
  void block(void* event, const c10::Stream& given) const override {
    auto* mark = static_cast<Mark*>(event);
    if (mark) stream_waits(key(given), mark->stream, mark->seq);
  }
  bool queryEvent(void* event) const override {
    check_alive();
    auto* mark = static_cast<Mark*>(event);
    return !mark || is_done(mark->stream, mark->seq);
  }
  bool queryStream(const c10::Stream& given) const override {
    check_alive();
    return is_done(key(given), UINT64_MAX);
  }
  void synchronizeStream(const c10::Stream& given) const override {
    host_waits("synchronize_stream", 0, given.device_index(), key(given));
  }
  void synchronizeEvent(void* event) const override {
    auto* mark = static_cast<Mark*>(event);
    int stream = mark ? mark->stream : stream_of(current_device);
    host_waits("synchronize_event", 0, current_device, stream);
  }
  void synchronizeDevice(const DeviceIndex device) const override {
    host_waits("synchronize_device", 0, device < 0 ? current_device : device,
               -1);
  }
  double elapsedTime(void*, void*, const DeviceIndex) const override {
    return 0.0;
  }
};

std::atomic<bool> hand_out_defaults{false};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return number_of_devices() > 0; }
  bool hasCUDA() const override { return number_of_devices() > 0; }
  const at::Generator& getDefaultGenerator(DeviceIndex index) const override {
    return generator_of(index);
  }
  at::Generator getNewGenerator(DeviceIndex index) const override {
    if (hand_out_defaults) return generator_of(index);
    return at::make_generator<DeviceGenerator>(index < 0 ? ::current_device
                                                         : index);
  }
  Device getDeviceFromPtr(void*) const override {
    return Device(c10::kCUDA, ::current_device);
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  bool hasPrimaryContext(DeviceIndex index) const override {
    return state().context[index];
  }
  DeviceIndex current_device() const override { return ::current_device; }
  at::Allocator* getPinnedMemoryAllocator() const override {
    return pinned_memory();
  }
  at::Allocator* getCUDADeviceAllocator() const override {
    return device_memory();
  }
  std::string showConfig() const override { return "  - simulated CUDA\n"; }
  long versionCUDART() const override { return 12060; }
  int getNumGPUs() const override { return number_of_devices(); }
  DeviceIndex deviceCount() const override {
    return DeviceIndex(number_of_devices());
  }
  void deviceSynchronize(DeviceIndex index) const override {
    host_waits("synchronize_device", 0, index, -1);
  }
  void setCurrentDevice(DeviceIndex index) const override {
    ::current_device = index;
  }
  DeviceIndex getCurrentDevice() const override { return ::current_device; }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    auto before = ::current_device;
    ::current_device = index;
    return before;
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override {
    return exchangeDevice(index);
  }
};

}  // namespace

namespace at {
using FakeCudaHooks = ::Hooks;
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", FakeCudaHooks);
}  // namespace at

namespace c10d {
namespace {
// DDP wants one for its device.
class FakeTimer final : public Timer {
 public:
  explicit FakeTimer(c10::Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    auto from = getTimeRef(start), to = getTimeRef(end);
    if (to <= from) return std::nullopt;
    return to - from;
  }
};
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, FakeTimer);
}  // namespace
}  // namespace c10d

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, ::Guard);
}

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("copy_", &copy);
  m.impl("_fused_sdp_choice", &choose_attention);
  m.impl("record_stream", &record_stream);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_whole);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("resize_", &resize);
#define KERNEL(name) \
  m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
#include "kernels.inc"
#undef KERNEL
}

// ---------------------------------------------------------------- for Python
extern "C" {
void fc_start() { c10::SetAllocator(c10::kCUDA, device_memory(), 200); }
void fc_hand_out_defaults(int on) { hand_out_defaults = on != 0; }
int fc_devices() { return number_of_devices(); }
int fc_get_device() { return current_device; }
void fc_set_device(int device) {
  if (device >= 0) current_device = DeviceIndex(device);
}
void fc_count(int on) { state().counting = on != 0; }
void fc_trace(int on) { state().tracing = on != 0; }
void fc_callback(Callback given) { state().callback = given; }
int64_t fc_kernels() { return state().kernels; }
int64_t fc_syncs() { return state().syncs; }
int fc_register(char* pointer, int64_t size) {
  auto& s = state();
  std::lock_guard<std::mutex> hold(s.lock);
  s.pinned_ranges[pointer] = size_t(size);
  s.pinned += size;
  s.pinned_peak = std::max(s.pinned_peak, s.pinned);
  return 0;
}
int fc_unregister(char* pointer) {
  auto& s = state();
  std::lock_guard<std::mutex> hold(s.lock);
  auto found = s.pinned_ranges.find(pointer);
  if (found == s.pinned_ranges.end()) return 1;
  s.pinned -= int64_t(found->second);
  s.pinned_ranges.erase(found);
  return 0;
}
int64_t fc_refused() { return state().refused; }
int64_t fc_races() { return state().races; }
int64_t fc_pending() {
  std::lock_guard<std::mutex> hold(state().lock);
  return int64_t(state().pending.size());
}
void fc_reset() {
  auto& s = state();
  std::lock_guard<std::mutex> hold(s.lock);
  s.kernels = 0;
  s.syncs = 0;
  s.races = 0;
  s.launches.clear();
}
// "name count\n" for each kind of kernel; the number of bytes needed.
int64_t fc_launches(char* to, int64_t size) {
  std::string text;
  {
    std::lock_guard<std::mutex> hold(state().lock);
    for (auto& [name, count] : state().launches)
      text += name + " " + std::to_string(count) + "\n";
  }
  if (to && size > int64_t(text.size()))
    std::memcpy(to, text.c_str(), text.size() + 1);
  return int64_t(text.size()) + 1;
}
int64_t fc_memory(int device, int what) {
  auto& s = state();
  std::lock_guard<std::mutex> hold(s.lock);
  switch (what) {
    case 0:
      return s.allocated[device];
    case 1:
      return s.peak[device];
    case 2:
      return s.limit[device];
    case 3:
      return s.pinned;
    case 4:
      return s.pinned_peak;
    default:
      return s.ooms[device];
  }
}
void fc_reset_peak(int device) {
  std::lock_guard<std::mutex> hold(state().lock);
  state().peak[device] = state().allocated[device];
}
void fc_set_limit(int device, int64_t bytes) {
  std::lock_guard<std::mutex> hold(state().lock);
  state().limit[device] = bytes;
}
int fc_context(int device) { return state().context[device]; }
void fc_touch(int device) { touch(device); }
int fc_broken() { return state().broken; }
void fc_break(const char* words, int code, int64_t after, int late) {
  auto& s = state();
  break_device(words, code);
  s.fails_late = late != 0;
  s.broken = after < 0;
  s.break_in = after;
}
void fc_hang(int on) { state().hung = on != 0; }
void fc_repair() {
  auto& s = state();
  s.broken = s.failing = s.hung = false;
  s.break_in = -1;
}
uint64_t fc_sequence() { return state().seq; }
int fc_next_stream() { return next_stream(); }
int fc_get_stream(int device) { return current_stream[device]; }
void fc_set_stream(int device, int stream) { current_stream[device] = stream; }
void fc_stream_waits(int device, int waiting, int awaited, uint64_t seq) {
  stream_waits(device * STREAMS + waiting, device * STREAMS + awaited, seq);
}
// 0: done, 1: not yet, 2: an error of the device
int fc_query(int device, int stream, uint64_t seq) {
  if (state().failing) state().broken = true;
  if (state().broken) return 2;
  return is_done(device * STREAMS + stream, seq) ? 0 : 1;
}
void fc_arrive(int device, int stream, uint64_t seq) {
  if (!state().hung) arrive(device * STREAMS + stream, seq);
}
// Negative: all streams.
int fc_wait(const char* name, int device, int stream) {
  if (state().failing) state().broken = true;
  if (state().broken) return 2;
  host_waits(name, 0, device, stream < 0 ? -1 : device * STREAMS + stream);
  return 0;
}
}
