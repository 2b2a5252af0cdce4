// An accelerator for tests, of the kind that comes in a package of its own (PrivateUse1).
#include <torch/csrc/utils/pybind.h>

#include "collectives.h"

PYBIND11_MODULE(flop_native, m) {
  flop::register_device();
  m.def("is_used", [] { return flop::Memory::instance().initialized(); });
  m.def("count_devices", [] { return flop::kDevices; });
  m.def(
      "make_collectives",
      [](c10::intrusive_ptr<c10d::Backend> inner) -> c10::intrusive_ptr<c10d::Backend> {
        return c10::make_intrusive<flop::Collectives>(std::move(inner));
      },
      py::call_guard<py::gil_scoped_release>());
}
