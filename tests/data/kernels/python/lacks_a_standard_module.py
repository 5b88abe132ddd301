# Like `import wave` where the interpreter's library lacks it.
raise ModuleNotFoundError("No module named 'wave'", name="wave")
