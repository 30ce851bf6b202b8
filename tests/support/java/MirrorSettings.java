import java.lang.reflect.*;
import java.util.*;
import java.util.jar.*;
import org.apache.kafka.common.config.ConfigDef;

/** Prints the settings of MirrorMaker 2, "NAME DEFAULT", from all definitions in its jar. */
public class MirrorSettings {
    static final TreeMap<String, String> settings = new TreeMap<>();

    public static void main(String[] args) throws Exception {
        for (String path : System.getProperty("java.class.path").split(":")) {
            if (!path.contains("connect-mirror")) continue;
            try (JarFile jar = new JarFile(path)) {
                for (JarEntry entry : Collections.list(jar.entries())) {
                    String name = entry.getName();
                    if (name.endsWith(".class")) read(Class.forName(name.replace('/', '.').replaceAll("\\.class$", "")));
                }
            }
        }
        settings.forEach((name, value) -> System.out.println(name + " " + value));
    }

    static void read(Class<?> type) throws Exception {
        for (Field field : type.getDeclaredFields()) {
            if (!Modifier.isStatic(field.getModifiers()) || field.getType() != ConfigDef.class) continue;
            field.setAccessible(true);
            add((ConfigDef) field.get(null));
        }
        for (Method method : type.getDeclaredMethods()) {
            boolean isDefinition = Modifier.isStatic(method.getModifiers()) && method.getReturnType() == ConfigDef.class;
            if (!isDefinition || method.getParameterCount() != 0) continue;
            method.setAccessible(true);
            add((ConfigDef) method.invoke(null));
        }
    }

    static void add(ConfigDef definition) {
        for (ConfigDef.ConfigKey key : definition.configKeys().values()) {
            Object value = key.hasDefault() && key.defaultValue != null ? key.defaultValue : "";
            String text = value instanceof Class ? ((Class<?>) value).getName() : value.toString();
            settings.put(key.name, value instanceof List ? text.substring(1, text.length() - 1) : text);
        }
    }
}
