"""The CMake file of an export."""

from __future__ import annotations

from .kernel_set import KernelSet


def cmake_file(kernels: KernelSet, *, has_torch: bool) -> str:
    """`CMakeLists.txt`: the exported library as a target, and the library of torch's operator if any."""
    name = kernels.name
    lines = [
        f"# add_subdirectory(FOLDER {name}) and target_link_libraries(program PRIVATE {name})",
        "cmake_minimum_required(VERSION 3.16)",
        f"project({name} LANGUAGES {'CXX' if has_torch else 'C'})",
        "",
        f"add_library({name} SHARED IMPORTED GLOBAL)",
        f"set_target_properties({name} PROPERTIES",
        f'  IMPORTED_LOCATION "${{CMAKE_CURRENT_LIST_DIR}}/lib{name}.so"',
        '  INTERFACE_INCLUDE_DIRECTORIES "${CMAKE_CURRENT_LIST_DIR}")',
    ]
    if has_torch:
        lines += [
            "",
            "# torch: the folder of libtorch or of the Python package, by default that of python3",
            "if(NOT TORCH_ROOT)",
            "  execute_process(",
            '    COMMAND python3 -c "import pathlib, torch; print(pathlib.Path(torch.__file__).parent)"',
            "    OUTPUT_VARIABLE TORCH_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)",
            "endif()",
            f"add_library({name}_torch SHARED {name}_torch.cpp)",
            f"target_compile_features({name}_torch PRIVATE cxx_std_17)",
            f"target_include_directories({name}_torch SYSTEM PRIVATE",
            '  "${TORCH_ROOT}/include" "${TORCH_ROOT}/include/torch/csrc/api/include")',
            f'target_link_directories({name}_torch PRIVATE "${{TORCH_ROOT}}/lib")',
            f"target_link_libraries({name}_torch PRIVATE {name} torch torch_cpu c10 ${{CMAKE_DL_LIBS}})",
        ]
    return "\n".join([*lines, ""])
